"""Options: files and --key=value, left to right, typed, and errors that help."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

import train
from configurator import configure, one_line_errors
from model import GPTConfig


@pytest.fixture
def namespace():
    return dict(learning_rate=1e-3, max_iters=100, name='a', flag=False, _private=1, __name__='x', path=Path('.'))


def test_left_to_right_with_types(namespace, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text('import math\nmax_iters = 50  # fewer\n_half = 2\n'
                      'learning_rate = max_iters / _half * 1e-3\nflag = True\n')
    options = configure(namespace, ['--max_iters=70', str(config), '--name=b=c', '--learning_rate=1'])
    assert options == dict(learning_rate=1.0, max_iters=50, name='b=c', flag=True)
    assert type(options['learning_rate']) is float
    assert namespace['max_iters'] == 50 and namespace['_private'] == 1  # the globals are overridden, nothing else
    assert configure(namespace, [str(config), '--max_iters=7'])['max_iters'] == 7


def test_a_config_may_compute_with_what_is_set(namespace, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text('max_iters = 2 * max_iters\n')
    assert configure(namespace, ['--max_iters=5', str(config), str(config)])['max_iters'] == 20


@pytest.mark.parametrize('argument, message', [
    ('--max_itres=3', "unknown option 'max_itres'; did you mean max_iters\\?"),
    ('--qqq=3', "unknown option 'qqq'; did you mean --help"),
    ('--_private=3', 'unknown option'),
    ('--max_iters=1.5', 'max_iters=1.5: must be a whole number'),
    ('--max_iters=many', "max_iters='many': must be a whole number"),
    ('--flag=1', 'flag=1: must be True or False'),
    ('--max_iters=True', 'max_iters=True: must be a whole number'),
    ('--flag', 'options are written --key=value'),
])
def test_bad_options_are_errors(namespace, argument, message):
    with pytest.raises(ValueError, match=message):
        configure(namespace, [argument])
    assert namespace['max_iters'] == 100


@pytest.mark.parametrize('text, message', [('max_itres = 3', 'did you mean max_iters'),
                                           ('max_iters = "3"', "max_iters='3': must be a whole number")])
def test_bad_config_files_are_errors(namespace, tmp_path, text, message):
    config = tmp_path / 'config.py'
    config.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        configure(namespace, [str(config)])
    assert str(config) in str(error.value)


def test_a_missing_config_file_is_named(namespace):
    with pytest.raises(FileNotFoundError, match='config/nothing.py: there is no such config file'):
        configure(namespace, ['config/nothing.py'])


def test_help_shows_every_option_with_its_comment(capsys):
    with pytest.raises(SystemExit) as exit:
        configure(dict(vars(train)), ['--help'])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    options = configure(dict(vars(train)), [])
    assert len(options) > 35
    for key in options:
        line = re.search(rf'^  --{key}=\S+ +(\S.*)$', shown, flags=re.MULTILINE)
        assert line and len(line[1]) > 4, f'{key} has no comment'


def test_the_models_options_are_those_of_the_script():
    """train.py has a global of the same name and default, but for what the task or a Llama checkpoint decides."""
    fields = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    ours = {name for name in fields if hasattr(train, name)}
    assert fields.keys() - ours == {'vocab_size', 'head_dim', 'n_inner', 'norm_eps', 'tie_embeddings'}
    assert all(getattr(train, name) == fields[name] for name in ours)


def test_an_error_of_the_user_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['/somewhere/train.py'])
    for error in (ValueError('n_embd=3:\n  must be even'), FileNotFoundError('x.pt does not exist')):
        with pytest.raises(SystemExit) as exit, one_line_errors():
            raise error
        assert exit.value.code == f'train.py: {" ".join(str(error).split())}'  # which Python prints, with status 1
    for error in (KeyboardInterrupt(), BrokenPipeError(32, 'Broken pipe')):  # Ctrl-C, `| head`: nothing to say
        with pytest.raises(SystemExit) as exit, one_line_errors():
            raise error
        assert exit.value.code == 130
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError('a mistake of ours')
    monkeypatch.setenv('TRACEBACK', '1')
    with pytest.raises(ValueError), one_line_errors():
        raise ValueError('all of it')
    monkeypatch.delenv('TRACEBACK')
    monkeypatch.setenv('RANK', '1')
    with pytest.raises(SystemExit) as exit, one_line_errors():
        raise ValueError('of several processes the first one speaks')
    assert exit.value.code == 1
