"""Tokenizers of Llama checkpoints, and runs of train.py that start from a Llama."""

import json
import subprocess
import sys

import pytest
import torch

from configurator import configure
from lab import pretrained
from lab.surgery import from_pretrained
from lab.tests.conftest import ROOT
from lab.tests.test_pretrained import LLAMA3, changed, write  # noqa: F401
from model import UserError


def write_tokenizer(folder, text='def f(x): return x\n', **changes):
    """The folder, with a byte-level BPE of 263 tokens, of which <|end|> is the last."""
    tokenizers = pytest.importorskip('tokenizers', reason='the tokenizer of the checkpoints')
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=262, initial_alphabet=byte_level.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text] * 9 + ['[ ]'] * 99, trainer)
    tokenizer.add_special_tokens(['<|end|>'])
    tokenizer.enable_truncation(4)  # as checkpoints have it, for sentences
    tokenizer.save(str(folder / 'tokenizer.json'))
    return changed(folder, **(dict(eos_token_id=262) | changes))


def test_a_tokenizer_reads_and_writes_as_its_library(write):
    folder = write_tokenizer(write(vocab_size=280))
    library = pytest.importorskip('tokenizers').Tokenizer.from_file(str(folder / 'tokenizer.json'))
    library.no_truncation()
    tokenizer, text = pretrained.Tokenizer(folder), 'def f(x): é<|end|> [ ]'
    ids = tokenizer.encode_ordinary(text)
    assert tokenizer.encode_ordinary('def f(x)') == library.encode('def f(x)').ids
    assert len(ids) < len(text.encode()) and 262 not in ids and tokenizer.decode(ids) == text
    batch = tokenizer.encode_ordinary_batch([text, 'x'])
    assert batch == [ids, tokenizer.encode_ordinary('x')]
    assert tokenizer.n_vocab == 263 and tokenizer.eot_token == 262
    assert tokenizer.decode_single_token_bytes(262) == b'<|end|>'
    with pytest.raises(KeyError):
        tokenizer.decode_single_token_bytes(263)
    decoded, places = tokenizer.decode_with_offsets(ids)
    assert decoded == text and places[0] == 0 and len(places) == len(ids)
    assert text[:places[1]] == tokenizer.decode(ids[:1]) and places == sorted(places)
    assert tokenizer.decode_with_offsets([262]) == ('', [])  # <|end|> is read as other tokens
    changed(folder, eos_token_id=[262, 3])
    assert pretrained.Tokenizer(folder).eot_token == 262  # the first of several


@pytest.mark.parametrize('text, eos, message', [
    (None, 262, 'tokenizer.json is missing'), ('{"model": 3', 262, 'tokenizer.json is broken'),
    (..., None, 'eos_token_id=None: must be a token of'),
    (..., 263, 'eos_token_id=263: must be a token of')])
def test_tokenizers_that_cannot_be_used_are_refused(write, text, eos, message):
    folder = write_tokenizer(write(), eos_token_id=eos)
    if text is None:
        (folder / 'tokenizer.json').unlink()
    elif text is not ...:
        (folder / 'tokenizer.json').write_text(text)
    with pytest.raises(UserError, match=message):
        pretrained.Tokenizer(folder)


@pytest.fixture
def code(tmp_path):
    """A folder of Python files, some for each split."""
    folder = tmp_path / 'code'
    folder.mkdir()
    for i in range(40):
        line = f'def f{i}(x):\n    return "é<|end|>" + x[{i}] + [ ]\n'
        (folder / f'{i}.py').write_text(line * 12)
    return folder


@pytest.fixture
def llama(write, code):
    """Arguments of train.py that start from a small Llama, on text in its tokens; its folder."""
    folder = write('small', vocab_size=280, num_hidden_layers=1, hidden_size=16, rope_theta=500.0)
    return start(write_tokenizer(folder), code), folder


def start(folder, code):
    return [f'--init_from=hf:{folder}', f'--task=text:path={code},encoding=hf:{folder}']


def assert_moved(before, after, names):
    """The positional parameters in `names` have moved; all else is what it was, bit for bit."""
    assert before.keys() == after.keys()
    assert names <= {key.rpartition('.')[2] for key in before}
    for key in before:
        moves = key.rpartition('.')[2] in names
        assert torch.equal(before[key], after[key]) != moves, key


def test_a_llama_is_trained_measured_and_sampled(run, llama):
    import train
    arguments, folder = llama
    this = run().train(*arguments, '--attention=bifocal', '--phase_std=0.0')
    saved = this.checkpoint()
    shape = dict(vocab_size=280, n_layer=1, n_head=4, n_kv_head=2, n_embd=16, n_inner=40,
                 rope_base=500.0, block_size=512, attention='bifocal', rope='geometric:bits=32')
    assert saved['model_args'] | shape == saved['model_args']
    task = arguments[1].removeprefix('--task=')
    rng = train.make_rng('validation', task)
    x, y = train.make_task(task).sample(rng, 8, 16, 'validation')
    model = from_pretrained(folder)
    loss, accuracy, _ = train.evaluate(model, torch.from_numpy(x), torch.from_numpy(y), 4)
    first = this.log()[0]
    assert (first['val_loss'], first['val_acc']) == pytest.approx((loss, accuracy), rel=1e-5)
    assert not torch.equal(saved['model']['embedding.weight'], model.embedding.weight)
    for script in ('eval.py', 'sample.py'):
        command = [sys.executable, script, this.folder, '--n=4', '--device=cpu', arguments[1]]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert process.returncode == 0 and process.stdout, process.stderr


def test_a_second_run_needs_no_shape(run, write, code, capsys):
    """Options that tell what the weights were trained with are those of best.pt."""
    folder = write_tokenizer(write(vocab_size=280, num_hidden_layers=3, hidden_size=24,
                                   num_attention_heads=6, head_dim=6, rope_theta=500.0,
                                   rope_scaling=LLAMA3, tie_word_embeddings=True))
    llama, task = start(folder, code)
    defaults = ['--n_layer=2', '--n_embd=64']  # of train.py
    first = run('first').train(llama, task, *defaults).checkpoint('best.pt')
    best = f'--init_from={run("first").folder}/best.pt'
    capsys.readouterr()
    second = run('second').train(best, task, *defaults)
    kept = capsys.readouterr().out.split('kept, for they were left at their defaults: ')[1]
    for name in ('n_layer=3', 'n_head=6', 'n_kv_head=2', 'rope_base=500.0', 'rope=llama3:'):
        assert name in kept
    assert second.checkpoint()['model_args'] == first['model_args'] | dict(block_size=16)
    assert second.log()[0]['val_loss'] == pytest.approx(first['best_val_loss'], rel=1e-5)
    weights = second.checkpoint()['model']  # tied, it is trained as one
    assert torch.equal(weights['lm_head.weight'], weights['embedding.weight'])
    with pytest.raises(UserError, match='n_layer=4: the weights in .*best.pt have n_layer=3'):
        run('third').train(best, task, *defaults, '--n_layer=4')


@pytest.mark.parametrize('option, message', [
    ('--n_layer=3', 'n_layer=3: the weights in .*small have n_layer=1'),
    ('--attention=tapa', 'rope to tapa is not a surgery'),
    ('--rope_base=600.0', 'rope_base=600.0: must be left out, for theta is that of hf:.*=500.0'),
    ('--task=dyck', 'task dyck is not in its tokens: must be text:encoding=hf:'),
    ('--task=text', 'task text is not in its tokens: must be text:encoding=hf:'),
    ('--init_from=hf:nowhere/a/b', 'nowhere/a/b: there is no such folder'),
    ('--init_from=FOLDER', 'small is a folder: must be .*small/best.pt .* hf:.*small for a Llama')])
def test_options_of_a_run_must_fit_the_llama(run, llama, option, message):
    arguments, folder = llama
    with pytest.raises(UserError, match=message):
        run().train(*arguments, option.replace('FOLDER', str(folder)))
    assert not run().folder.exists()


def test_tokens_are_compared_and_not_only_their_names(run, write, llama, code):
    (init_from, _), folder = llama
    task = f'--task=text:path={code},encoding=hf:'
    run().train(init_from, f'{task}{folder}/')  # another spelling of the folder
    other = write_tokenizer(write('other', vocab_size=280), 'text with other pairs\n')
    with pytest.raises(UserError, match='encoding=hf:.*other is not in its tokens'):
        run('bad').train(init_from, f'{task}{other}')
    few = write_tokenizer(write('few', num_hidden_layers=1, hidden_size=16))
    with pytest.raises(UserError, match='few: it knows 29 tokens, and task .* has 263'):
        run('bad').train(*start(few, code))
    assert not run('bad').folder.exists()


def test_a_run_from_a_llama_resumes(run, llama):
    arguments = [*llama[0], '--attention=bifocal']
    before = run().train(*arguments).checkpoint()
    after = run().train(*arguments, '--init_from=resume', '--max_iters=9').checkpoint()
    assert before['iter'] == 6 and after['iter'] == 9
    assert after['model_args'] == before['model_args']
    assert after['options']['init_from'].startswith('hf:')
    first, second = (list(saved['model'].values()) for saved in (before, after))
    assert not any(torch.equal(a, b) for a, b in zip(first, second))


def test_the_config_for_a_checkpoint_of_the_hub(run, write, code):
    """On a checkpoint of another size, in place of the download."""
    import train
    config = str(ROOT / 'lab/config/surgery_code.py')
    options = configure(dict(vars(train)), [config])
    assert options['task'] == f'text:encoding={options["init_from"]}'
    assert options['learning_rate'] == 0 and options['spectral_lr'] > 0
    folder = write_tokenizer(write(vocab_size=280))
    this = run().train(config, *start(folder, code), f'--out_dir={run().folder}', '--max_iters=2',
                       '--block_size=64', '--n_layer=2', '--n_embd=64', '--eval_sequences=4',
                       '--device=cpu')
    after = this.checkpoint()['model']
    before = from_pretrained(folder, 'spectral', phase_std=0.0).state_dict()
    # the first Phi was random
    before |= {name: weight for name, weight in after.items() if name.endswith('.Phi')}
    assert_moved(before, after, {'Omega', 'A'})
