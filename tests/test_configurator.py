"""Options: files and --key=value, left to right, typed; errors of one line; what is printed."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
import torch

import train
from configurator import configure, one_line_errors
from configurator import choose_device, choose_hardware
from model import GPTConfig, UserError

REPLACED = '\N{REPLACEMENT CHARACTER}'


@pytest.fixture
def namespace():
    return dict(learning_rate=1e-3, max_iters=100, name='a', flag=False, slope=-1.0,
                _private=1, __name__='x', path=Path('.'))


@pytest.fixture
def config(tmp_path):
    """config(text) is the path of a config file with this text."""
    def write(text):
        path = tmp_path / 'config.py'
        path.write_text(text, encoding='utf-8')
        return str(path)
    return write


def test_left_to_right_with_types(namespace, config):
    before = dict(namespace)
    path = config('import numpy as np\n'
                  'max_iters = 50  # fewer\n'
                  '_half = 2\n'
                  'learning_rate = max_iters / _half * 1e-3\n'
                  'flag = True\n'
                  'slope = np.sqrt(4)\n')
    arguments = ['--max_iters=70', path, '--name=b=c', '--learning_rate=2', '--learning_rate=1']
    options, given = configure(namespace, arguments)
    assert options == dict(learning_rate=1.0, max_iters=50, name='b=c', flag=True, slope=2.0)
    assert given == {'learning_rate', 'max_iters', 'name', 'flag', 'slope'}
    assert type(options['learning_rate']) is type(options['slope']) is float
    assert namespace == before
    assert configure(namespace, [path, '--max_iters=7'])[0]['max_iters'] == 7
    assert configure(namespace, ['--name=7'])[0]['name'] == '7'


@pytest.mark.parametrize('argument, message', [
    ('--max_itres=3', "'max_itres' is no option; did you mean 'max_iters'\\?"),
    ('--qqq=3', "'qqq' is no option; there are learning_rate, max_iters, name, flag, slope$"),
    ('--_private=3', 'is no option'),
    ('--max_iters=1.5', 'max_iters=1.5: must be a whole number'),
    ('--max_iters=many', "max_iters='many': must be a whole number"),
    ('--max_iters=True', 'max_iters=True: must be a whole number'),
    ('--learning_rate=nan', "learning_rate='nan': must be a number"),
    ('--flag=1', 'flag=1: must be True or False'),
    ('--flag', 'options are written --key=value'),
    ('config', 'config: there is no such config file'),
    ('config/nothing.py', 'config/nothing.py: there is no such config file'),
    ('dyck3_spectral', "did you mean 'config/dyck3_spectral.py'"),
])
def test_bad_options_are_errors(namespace, argument, message):
    with pytest.raises(UserError, match=message):
        configure(namespace, [argument])


@pytest.mark.parametrize('text, message', [
    ('max_itres = 3', "did you mean 'max_iters'"),
    ('max_iters = "3"', "max_iters='3': must be a whole number"),
    ('name = 3', 'name=3: must be a string'),
    ('a_third = 1 / 3', 'a_third'),
])
def test_bad_config_files_are_errors(namespace, config, text, message):
    path = config(text)
    with pytest.raises(UserError, match=message) as error:
        configure(namespace, [path])
    assert path in str(error.value)


def test_an_error_in_a_config_keeps_its_traceback(namespace, config):
    path = config('max_iters = 3\nmax_iters = 1 / 0\n')
    with pytest.raises(ZeroDivisionError) as error, one_line_errors():
        configure(namespace, [path])
    last = error.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (path, 2)


def test_help_shows_every_option_and_comment(capsys):
    with pytest.raises(SystemExit) as exit:
        configure(dict(vars(train)), ['--seed=1', '--help'])
    assert not exit.value.code
    shown = capsys.readouterr().out
    assert train.__doc__.strip() in shown
    for key in configure(dict(vars(train)), [])[0]:
        assert re.search(rf'^  --{key}=\S', shown, flags=re.MULTILINE), key
    assert re.search(r'^  --max_iters=\d+  # \w', shown, flags=re.MULTILINE)


def test_the_models_options_are_those_of_the_script():
    """A global of train.py has the default of the field of its name."""
    fields = [field for field in dataclasses.fields(GPTConfig) if hasattr(train, field.name)]
    assert fields and all(getattr(train, field.name) == field.default for field in fields)


# errors of one line
def line_of(error):
    """What a script that raises this error prints as it ends."""
    with pytest.raises(SystemExit) as exit, one_line_errors():
        raise error
    return exit.value.code  # Python prints a string, and ends with status 1


def test_an_error_of_the_user_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['/somewhere/train.py'])
    assert line_of(UserError('n=3: must be 2')) == 'train.py: n=3: must be 2'
    assert line_of(UserError('é \x1b[2J')) == f'train.py: é {REPLACED}[2J'  # a terminal obeys it
    for kind in (ValueError, OSError, RuntimeError):  # a mistake in the code
        with pytest.raises(kind), one_line_errors():
            raise kind('a mistake')


# the device
@pytest.mark.parametrize('name', ['tpu', 'meta', 'hpu', 'cuda:99', 'cpu:-1', '', ':'])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(UserError, match=f"device='{name}' is not there: ."):
        choose_device(name)


def test_without_a_gpu_all_is_on_the_cpu_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: False)
    assert choose_device() == 'cpu'
    assert choose_hardware('cpu').dtype == 'float32'
    assert choose_hardware('cpu', 'bfloat16').dtype == 'bfloat16'
    with pytest.raises(UserError, match="dtype='int8': must be one of auto, float32, bfloat16"):
        choose_hardware('cpu', 'int8')



