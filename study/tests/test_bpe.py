"""The encoding that is learned from a text: what it holds, and what it is learned from."""

import json

import pytest

from configurator import UserError
from lab.pretrained import Tokenizer
from study import bpe
from tasks import make_task, read_files

pytest.importorskip('tokenizers')


@pytest.fixture
def text(tmp_path):
    """A file whose first part has one word, and whose last, the test split, another."""
    path = tmp_path / 'text.txt'
    path.write_text('def window():\n' * 800 + 'def zebra():\n' * 50)
    return path


def test_the_frequent_word_of_the_training_split_becomes_a_token(text, tmp_path, capsys):
    folder = tmp_path / 'bpe'
    bpe.main(['--tokens', '280', '--path', str(text), '--out', str(folder)])
    tokenizer = Tokenizer(str(folder))
    names = {tokenizer.decode([i]) for i in range(tokenizer.n_vocab)}
    assert ' window' in names and ' zebra' not in names
    assert 257 < tokenizer.n_vocab <= 280
    assert tokenizer.eot_token == json.loads((folder / 'config.json').read_text())['eos_token_id']
    assert tokenizer.decode([tokenizer.eot_token]) == bpe.END
    (part,) = read_files(str(text))['test'].values()
    ratio = len(part) / len(tokenizer.encode_ordinary(part))
    assert f'{ratio:.2f} bytes a token' in capsys.readouterr().out


def test_every_byte_has_a_token_and_comes_back(text, tmp_path):
    folder = tmp_path / 'bpe'
    bpe.main(['--tokens', '257', '--path', str(text), '--out', str(folder)])
    task = make_task(f'text:path={text},encoding=hf:{folder}')
    strange = ''.join(map(chr, range(0x100))) + '→ 眼\r\n'
    ids = task.tokenizer.encode_ordinary(strange)
    assert len(ids) == len(strange.encode()) and task.tokenizer.decode(ids) == strange


def test_learning_twice_gives_the_same_tokens(text):
    texts = list(read_files(str(text))['train'].values())
    assert bpe.learn(texts, 300).to_str() == bpe.learn(texts, 300).to_str()


def test_mistakes_are_named_before_any_work(text, tmp_path):
    with pytest.raises(UserError, match='--tokens 256: must be 257 or more'):
        bpe.main(['--tokens', '256', '--path', str(text), '--out', str(tmp_path / 'bpe')])
    with pytest.raises(UserError, match='exists; delete it, or choose another'):
        bpe.main(['--path', str(text), '--out', str(tmp_path)])
