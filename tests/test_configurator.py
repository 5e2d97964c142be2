"""Options: files and --key=value, left to right, typed; errors that help; the device."""

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from configurator import (choose_device, choose_dtype, command, configure, nearest,
                          one_line_errors, printable, this_process)
from model import GPTConfig, UserError


@pytest.fixture
def namespace():
    return dict(learning_rate=1e-3, max_iters=100, name='a', flag=False, slope=-1.0,
                _private=1, __name__='x', path=Path('.'))


@pytest.fixture
def config(tmp_path):
    """config(text) is the path of a config file with this text."""
    def write(text):
        path = tmp_path / 'config.py'
        path.write_text(text)
        return str(path)
    return write


def test_left_to_right_with_types(namespace, config):
    before = dict(namespace)
    path = config('import math\n'
                  'max_iters = 50  # fewer\n'
                  '_half = 2\n'
                  'learning_rate = max_iters / _half * 1e-3\n'
                  'flag = True\n')
    arguments = ['--max_iters=70', path, '--name=b=c', '--learning_rate=1']
    options = configure(namespace, arguments)
    expected = dict(learning_rate=1.0, max_iters=50, name='b=c', flag=True, slope=-1.0)
    assert options == expected
    assert type(options['learning_rate']) is float
    assert namespace == before
    assert configure(namespace, [path, '--max_iters=7'])['max_iters'] == 7


def test_a_config_may_compute_with_what_is_set(namespace, config):
    path = config('max_iters = 2 * max_iters\n')
    assert configure(namespace, ['--max_iters=5', path, path])['max_iters'] == 20


def test_a_string_stays_a_string(namespace):
    assert configure(namespace, ['--name=7'])['name'] == '7'


@pytest.mark.parametrize('argument, message', [
    ('--max_itres=3', "'max_itres' is no option; did you mean 'max_iters'\\?"),
    ('--qqq=3', "'qqq' is no option; there are learning_rate, max_iters, name, flag, slope$"),
    ('--_private=3', 'is no option'),
    ('--init_std=0.1', "'init_std' is no option, but a field of GPTConfig: write .* init_std = 0"),
    ('--max_iters=1.5', 'max_iters=1.5: must be a whole number'),
    ('--max_iters=many', "max_iters='many': must be a whole number"),
    ('--max_iters=True', 'max_iters=True: must be a whole number'),
    ('--max_iters=-1', 'max_iters=-1: must be a whole number .*, 0 or more'),
    (f'--max_iters={2**63}', r'must be a whole number below 2\*\*63, 0 or more'),
    (f'--max_iters={"9" * 5000}', 'must be a whole number'),
    ('--learning_rate=1e999', 'learning_rate=inf: must be a finite number, 0 or more'),
    ('--learning_rate=nan', "learning_rate='nan': must be a finite number"),
    (f'--learning_rate={10**400}', 'must be a finite number'),
    ('--learning_rate=-1e-3', 'learning_rate=-0.001: must be a finite number, 0 or more'),
    ('--slope=-1e999', 'slope=-inf: must be a finite number$'),
    ('--flag=1', 'flag=1: must be True or False'),
    ('--flag', 'options are written --key=value'),
])
def test_bad_options_are_errors(namespace, argument, message):
    with pytest.raises(UserError, match=message):
        configure(namespace, [argument])


def test_numbers_of_numpy_are_numbers(namespace, config):
    path = config('import numpy as _np\n'
                  'learning_rate = _np.float64(0.5)\n'
                  'max_iters = _np.int64(7)\n'
                  'slope = _np.float32(-0.5)\n'
                  'flag = _np.bool_(True)\n')
    options = configure(namespace, [path])
    expected = dict(learning_rate=0.5, max_iters=7, slope=-0.5, flag=True, name='a')
    assert options == expected
    assert not [value for value in options.values() if isinstance(value, np.generic)]


def test_an_option_is_given_once(namespace):
    with pytest.raises(UserError, match='--max_iters=2: options are written .* each once'):
        configure(namespace, ['--max_iters=1', '--max_iters=2'])


def test_an_option_whose_default_is_negative_may_be_negative(namespace, config):
    assert configure(namespace, ['--slope=-2'])['slope'] == -2.0
    assert configure(namespace, ['--slope=2'])['slope'] == 2.0
    assert configure(namespace, [config('slope = -3')])['slope'] == -3.0


@pytest.mark.parametrize('text, message', [
    ('max_itres = 3', "did you mean 'max_iters'"),
    ('max_iters = "3"', "max_iters='3': must be a whole number"),
    ('name = 3', 'name=3: must be a string'),
    ('def helper():\n    pass', "'helper' is no option.* own variable starts with _"),
    ('from math import pi', "'pi' is no option.* own variable starts with _"),
    ('import torch\ntorch.set_default_dtype(torch.float64)', 'sets the default dtype of PyTorch'),
    ('import numpy as _np\nmax_iters = _np.float32(2)', 'max_iters=2.0: must be a whole number'),
    ('max_iters = ', 'is no config file: invalid syntax'),
    ('A page in Markdown', 'is no config file: invalid syntax'),
])
def test_bad_config_files_are_errors(namespace, config, text, message):
    path = config(text)
    with pytest.raises(UserError, match=message) as error:
        configure(namespace, [path])
    assert path in str(error.value)


def test_a_binary_file_is_no_config(namespace, tmp_path):
    (tmp_path / 'ckpt.pt').write_bytes(b'PK\x03\x04\x00\xff')
    with pytest.raises(UserError, match='ckpt.pt is no config file'):
        configure(namespace, [str(tmp_path / 'ckpt.pt')])


def test_a_missing_config_file_is_named(namespace):
    with pytest.raises(UserError, match='config/nothing.py: there is no such config file'):
        configure(namespace, ['config/nothing.py'])
    with pytest.raises(UserError, match="did you mean 'config/dyck3_spectral.py'"):
        configure(namespace, ['dyck3_spectral'])


def test_a_long_list_is_left_to_the_help():
    with pytest.raises(UserError, match="--lr=0.1: 'lr' is no option; --help lists them$"):
        configure(vars(train), ['--lr=0.1'])


def test_a_config_file_with_a_slip_in_its_name_is_suggested(namespace, config):
    path = config('max_iters = 3')
    with pytest.raises(UserError, match=f"did you mean '{path}'\\?"):
        configure(namespace, [path.replace('config.py', 'confg.py')])


@pytest.mark.parametrize('text, kind', [
    ('a_third = 1 / 0', ZeroDivisionError), ('max_iters = max_itres', NameError),
    ('max_iters = int("many")', ValueError), ('import nothing_of_this_name', ImportError)])
def test_an_error_in_a_config_keeps_its_traceback(namespace, config, text, kind):
    path = config(f'max_iters = 3\n{text}\n')
    with pytest.raises(kind) as error, one_line_errors():
        configure(namespace, [path])
    assert not isinstance(error.value, UserError)
    last = error.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (path, 2)


def test_help_shows_every_option_with_its_comment(capsys):
    with pytest.raises(SystemExit) as exit:
        configure(dict(vars(train)), ['--help'])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    assert train.__doc__.strip() in shown
    for key in configure(dict(vars(train)), []):
        line = re.search(rf'^  --{key}=\S.*  # (.*)$', shown, flags=re.MULTILINE)
        assert line and len(line[1]) > 4, f'{key} has no comment'


def test_help_without_docstrings(capsys):
    with pytest.raises(SystemExit):
        configure(dict(vars(train), __doc__=None), ['--help'])
    assert '--attention=' in capsys.readouterr().out


def test_help_that_nobody_reads_to_the_end_has_no_traceback():
    command = [sys.executable, train.__file__, '--help']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert 'Traceback' not in process.stderr.read()
    process.stderr.close()
    process.wait()


def test_the_models_options_are_those_of_the_script():
    """train.py has a global of the same name and default, but for what the task decides."""
    fields = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    ours = {name for name in fields if hasattr(train, name)}
    assert fields.keys() - ours == {'vocab_size'}
    assert all(getattr(train, name) == fields[name] for name in ours)


# errors of one line


def line_of(error):
    """What a script that raises this error prints as it ends."""
    with pytest.raises(SystemExit) as exit, one_line_errors():
        raise error
    return exit.value.code  # Python prints a string, and ends with status 1


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['/somewhere/train.py'])
    monkeypatch.delenv('RANK', raising=False)
    monkeypatch.delenv('TRACEBACK', raising=False)


def test_an_error_of_the_user_is_one_line(alone):
    assert line_of(UserError('n_embd=3:\n  must be even')) == 'train.py: n_embd=3: must be even'


def test_escape_sequences_do_not_reach_the_terminal(alone):
    assert line_of(UserError('a \x1b[31mred\nname')) == 'train.py: a \ufffd[31mred name'
    assert printable('é\x1b\x9b\n\u202e\udcff') == 'é' + 5 * '\ufffd'
    assert printable('a\nb\tc\r', kept='\n\t') == 'a\nb\tc\ufffd'


def test_what_is_printed_cannot_control_the_terminal(alone, capsys):
    with one_line_errors():
        print('a\tb\nc\x1b[2J', end='\r', flush=True)
    print('\r')  # as before
    assert capsys.readouterr().out == 'a\tb\nc\ufffd[2J\ufffd\r\n'


def test_a_command_that_is_printed_is_read_as_it_is_meant():
    words = ['python', 'eval.py', Path('out/~a b'), "--task=text:path=$HOME/'x'"]
    assert shlex.split(command(*words)) == [str(word) for word in words]
    assert command('a', 'b') == 'a b'


def test_nearest_is_a_name_or_all_names():
    assert nearest('zzz', ['abc', 'def']) == '; there are abc, def'
    assert nearest('abd', ['abc', 'def']) == "; did you mean 'abc'?"


def test_memory_that_runs_out_is_one_line(alone):
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
    for kind in (RuntimeError, MemoryError, torch.OutOfMemoryError):
        assert line_of(kind(message)) == f'train.py: {message}'
    assert line_of(MemoryError()) == 'train.py: there is not enough memory'


def test_ctrl_c_and_a_closed_pipe_say_nothing(alone):
    for error in (KeyboardInterrupt(), BrokenPipeError(32, 'Broken pipe')):
        assert line_of(error) == 130


@pytest.mark.parametrize('kind', [
    ValueError, TypeError, KeyError, ImportError, OSError, FloatingPointError, RuntimeError])
def test_any_other_error_keeps_its_traceback(alone, kind):
    with pytest.raises(kind), one_line_errors():
        raise kind('a mistake in the code')


def test_traceback_shows_an_error_of_the_user_as_well(alone, monkeypatch):
    monkeypatch.setenv('TRACEBACK', '1')
    with pytest.raises(UserError), one_line_errors():
        raise UserError('all of it')


def test_another_process_than_the_first_says_nothing(alone, monkeypatch, capsys):
    monkeypatch.setenv('RANK', '1')
    assert line_of(UserError('the first process says this')) == 1
    assert line_of(RuntimeError('Connection closed by peer')) == 1
    assert capsys.readouterr().err == ''


# the device


@pytest.mark.parametrize('name', ['tpu', 'meta', 'hpu', 'cuda:99', 'cpu:-1', '', ':'])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(UserError, match=f"device='{name}' is not there: ."):
        choose_device(name)


def test_without_a_gpu_all_is_on_the_cpu_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: False)
    assert choose_device() == 'cpu'
    assert choose_dtype('auto', 'cpu') == 'float32'
    assert choose_dtype('bfloat16', 'cpu') == 'bfloat16'
    with pytest.raises(UserError, match="dtype='int8': must be one of auto, float32, bfloat16"):
        choose_dtype('int8', 'cpu')


def test_a_process_of_torchrun_knows_its_number(monkeypatch):
    for name, value in dict(RANK='3', WORLD_SIZE='4', LOCAL_RANK='1').items():
        monkeypatch.setenv(name, value)
    process = this_process('cpu', 'float32')
    assert (process.rank, process.world, process.device) == (3, 4, 'cpu')
