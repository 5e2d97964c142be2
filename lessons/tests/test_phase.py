"""
lessons/phase.html trains as model.py does, gives its scores, draws every step, and loads nothing.

Its formulas and its training run in node, the page in a Chromium without a window. A test is
skipped where its program is missing, unless CI_BROWSER is set. CHROME may name another browser.
"""

import json
import math
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.frequencies import LAB_FREQUENCIES
from lessons import page, repository
from model import ATTENTIONS as CLASSES
from model import GPT, GPTConfig, distances, geometric
from optim import configure_optimizers
from tasks import make_rng, make_task
from train import schedule

TEXT = page.PAGE.read_text(encoding='utf-8')
LEARNED = ['Omega', 'A', 'Phi']
MATRICES = ['norm_1', 'attention.qkv', 'attention.proj', 'norm_2', 'mlp.gate', 'mlp.up',
            'mlp.down']


def found(program):
    """The path of a program, or a skipped test; a failed one in CI_BROWSER."""
    if program is None:
        pytest.fail('missing') if os.environ.get('CI_BROWSER') else pytest.skip('missing')
    return program


@pytest.fixture
def node(tmp_path):
    """node(code, script): what the body of a function returns after one of the page's scripts."""
    def run(code, script='formulas'):
        text = re.search(rf'<script id="{script}"[^>]*>(.+?)</script>', TEXT, flags=re.DOTALL)[1]
        path = tmp_path / 'script.js'
        path.write_text(f'{text}\nconsole.log(JSON.stringify((() => {{ {code} }})()))\n', 'utf-8')
        command = [found(shutil.which('node')), path]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return run


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    browser = page.Browser(found(page.find_browser()), tmp_path_factory.mktemp('chrome'))
    yield browser
    browser.close()


def random_case(seed):
    """Settings of the page, a query for each of T tokens and a key for each of S, as arrays."""
    rng = np.random.default_rng(seed)
    hs, S = int(rng.choice([4, 8, 32])), int(rng.integers(2, 70))
    settings = dict(
        attention=['rope', 'spectral', 'tapa', 'nope', 'alibi'][seed % 5], slope=rng.uniform(),
        base=float(10 ** rng.uniform(1, 6)), tapa_alpha=rng.uniform(0.05, 1),
        tapa_theta=int(rng.integers(1, hs)) / hs, tapa_scale=rng.uniform(0.5, 7))
    settings |= {name: rng.uniform(-3, 3, hs // 2).tolist() for name in LEARNED}
    return settings, rng.normal(size=(min(S, 3), hs)), rng.normal(size=(S, hs))


def expected_scores(settings, q, k):
    """The scores (T, S) of model.py in float64; of ALiBi by its formula."""
    q, k, name = torch.tensor(q)[None, None], torch.tensor(k)[None, None], settings['attention']
    T, S, hs = q.size(2), k.size(2), q.size(3)
    if name == 'alibi':
        return (q @ k.mT / math.sqrt(hs) - settings['slope'] * distances(q, k))[0, 0].numpy()
    options = {key: settings[key] for key in settings if key.startswith('tapa_')}
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=settings['base'], **options)
    attention = CLASSES[name](config)
    if name in ('rope', 'spectral'):
        attention.theta = geometric(config)
    for parameter in LEARNED if name == 'spectral' else []:
        getattr(attention, parameter).data = torch.tensor([settings[parameter]])
    with torch.no_grad():
        if attention.scores is not None:
            return attention.scores(q, k)[0, 0].numpy()
        q, _ = attention.rotate(q, q, torch.arange(S - T, S))
        _, k = attention.rotate(k, k, torch.arange(S))
        return (q @ k.mT / math.sqrt(hs))[0, 0].numpy()


def test_scores_are_those_of_the_model(node, request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)  # of distances to a power: float32 is too coarse
    cases = [random_case(seed) for seed in range(50)]
    given = [[settings, q.tolist(), k.tolist()] for settings, q, k in cases]
    scores = node(f"""return {json.dumps(given)}.map(([settings, q, k]) => q.map((query, t) =>
        k.map((key, n) => phase.score(settings, query, key, k.length - q.length + t - n))))""")
    for case, score in zip(cases, scores, strict=True):
        np.testing.assert_allclose(score, expected_scores(*case), atol=1e-5, err_msg=case[0])


def test_how_many_repeats_of_ten_letters_a_frequency_gets_right(node):
    theta = geometric(GPTConfig(vocab_size=1, n_head=1, n_embd=32)).tolist()
    right = node(f"""
        const values = frequency => Array.from({{ length: 430 }}, (_, d) => Math.cos(d * frequency))
        return {[*theta, 0.6314, 2 * math.pi / 10, 1695 ** (-1 / 16)]}.map(frequency =>
          [51, 408].map(length => phase.turns(values(frequency), 10, length)
            .filter(turn => turn.right).length))""")
    assert [in_training for in_training, _ in right[:16]] == [1, 0, 2] + 13 * [0]
    assert right[16:] == [[5, 10], [5, 40], [5, 40]]  # chapter 3 says so; base 1695 has its pair 1


@pytest.mark.parametrize('base, hs, factor, length', [(1e4, 32, 4, 64), (5e5, 128, 8, 8192)])
def test_extensions_are_those_of_the_lab(node, base, hs, factor, length):
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=base, block_size=length)
    for name in ('pi', 'ntk', 'yarn'):
        theta = node(f'return phase.stretched("{name}", {base}, {hs}, {factor}, {length})')
        expected = LAB_FREQUENCIES[name](config, factor).numpy()
        np.testing.assert_allclose(theta, expected, rtol=1e-9)
    assert node('return phase.fromNeighbours([0, 1, 2, 3, 4, 5])') == [0, 2, 4, 1, 3, 5]


# ---- the training ------------------------------------------------------------------------------

def train_model(attention, layers, updates=10):
    """The page's recipe: weights and batches; and losses, first gradients and last weights."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=6, n_layer=layers, n_head=1, n_embd=32, block_size=51,
                          attention=attention, rope_base=1000.0))
    names = {place: f'{place}.weight' for place in ['embedding', 'norm', 'lm_head']}
    for layer in range(layers):
        names |= {f'{place.split(".")[-1]}.{layer}': f'blocks.{layer}.{place}.weight'
                  for place in MATRICES}
        if attention == 'spectral':
            names |= {f'{name}.{layer}': f'blocks.{layer}.attention.{name}' for name in LEARNED}

    def lists(read):
        return {name: read(model.get_parameter(names[name])).flatten().tolist() for name in names}

    given = {'weights': lists(torch.Tensor.detach), 'batches': []}
    expected = {'losses': []}
    recipe = {'optimizer': 'adamw', 'learning_rate': 1.6e-2, 'positional_lr': 1e-2,
              'weight_decay': 0.1, 'beta1': 0.9, 'beta2': 0.99}
    optimizers = configure_optimizers(model, SimpleNamespace(**recipe))
    for it in range(updates):
        x, y = make_task('bio_rotation').sample(make_rng(0, 'train', it, 0), 8, 51)
        given['batches'].append({'idx': x.flatten().tolist(), 'targets': y.flatten().tolist()})
        _, loss = model(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        expected['losses'].append(loss.item())
        expected.setdefault('gradients', lists(lambda p: p.grad))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group['lr'] = group['peak_lr'] * schedule(it, 120, 20, 0.0)
            optimizer.step()
            optimizer.zero_grad()
    return given, {**expected, 'weights': lists(torch.Tensor.detach)}


@pytest.mark.parametrize('attention, layers', [
    ('spectral', 1), ('rope', 1), ('nope', 1), ('spectral', 2)])
def test_the_page_trains_as_model_py_does(attention, layers, node):
    """Losses to 1e-4; gradients and weights to 1e-4 of the largest in their tensor."""
    given, expected = train_model(attention, layers)
    trained = node(f"""
        const given = {json.dumps(given)}
        const run = new Run({{ attention: '{attention}', base: 1000, layers: {layers} }})
        const model = named(run.model)
        const names = Object.keys(given.weights)
        for (const name of names) model[name].value.set(given.weights[name])
        const lists = kind =>
          Object.fromEntries(names.map(name => [name, Array.from(model[name][kind])]))
        const found = {{ losses: [] }}
        for (const batch of given.batches) {{
          found.losses.push(run.update(batch).loss)
          found.gradients ??= lists('grad')
        }}
        return {{ ...found, weights: lists('value') }}""", 'model')
    np.testing.assert_allclose(trained['losses'], expected['losses'], rtol=0, atol=1e-4)
    for kind in ('gradients', 'weights'):
        for name, numbers in expected[kind].items():
            np.testing.assert_allclose(trained[kind][name], numbers, rtol=0, err_msg=(kind, name),
                                       atol=1e-4 * np.abs(numbers).max())


def test_the_page_shows_the_task_and_the_attention_of_its_queries_and_keys(node):
    look = node("""
        const look = new Run({ attention: 'spectral', strand: 'GATTACA' }).look()
        const lists = ['q', 'k', 'weights'].map(key => [key, Array.from(look[key])])
        return { ...look, ...Object.fromEntries(lists) }""", 'model')
    x = np.array([look['idx']])
    assert x.tolist() == [[0, 3, 1, 4, 4, 1, 2, 1] + 28 * [5]]
    assert make_task('bio_rotation:period=7').targets(x).tolist() == [look['targets']]
    q, k = [torch.tensor(look[name]).view(36, 32) for name in 'qk']
    hidden = torch.ones(36, 36).triu(1).bool()
    weights = (q @ k.T / math.sqrt(32)).masked_fill(hidden, -math.inf).softmax(-1)
    np.testing.assert_allclose(np.reshape(look['weights'], (36, 36)), weights, atol=1e-5)


def test_crystallising_moves_each_frequency_to_its_nearest_multiple(node):
    before, kept, after = np.array(node("""
        const run = new Run({ base: 100 })
        const Omega = () => run.look().Omega
        return [Omega(), (run.periods(), Omega()), (run.crystallise(10), Omega())]""", 'model'))
    np.testing.assert_array_equal(kept, before)
    wanted = np.round(before / math.pi * 5) * math.pi / 5
    np.testing.assert_allclose(after, wanted, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('attention, base, seed, layers, right', [
    ('spectral', 10000, 1, 1, [1, 1, 1, 1]), ('rope', 10000, 1, 1, [1, 1, 1, 0]),  # step 2.1
    ('rope', 10000, 1, 2, [1, 1, 1, 1]),  # step 2.9
    ('rope', 1000, 1, 1, [1, 1, 1, 1]), ('spectral', 10000, 2, 1, [0, 0, 0, 0])])  # step 2.2
def test_runs_end_as_the_words_say(attention, base, seed, layers, right, node):
    repeats, Omega = node(f"""
        const run = new Run({{ attention: '{attention}', base: {base}, seed: {seed},
          layers: {layers} }})
        for (let i = 0; i < 120; i++) run.update()
        const {{ answers, targets }} = run.look()
        return [[1, 2, 3, 4].map(turn => answers.every((answer, t) =>
          Math.floor((t - 1) / 10) !== turn || answer === targets[t])), run.look().Omega[1]]
        """, 'model')
    assert repeats == right
    if (attention, seed) == ('spectral', 1):
        assert Omega == pytest.approx(0.6314, abs=2e-4)  # step 3.3


@pytest.mark.parametrize('address, site', [
    ('', ''), ('https://github.com/Some-One/phase', 'https://some-one.github.io/phase/')])
def test_the_address_stands_in_one_place(address, site, tmp_path, monkeypatch):
    text = page.build(TEXT, address)
    assert f"const REPOSITORY = '{address}'" in text
    assert f'og:image" content="{site}figures/phase.png"' in text
    page.publish(tmp_path / 'site', address)
    assert (tmp_path / 'site' / 'index.html').read_text(encoding='utf-8') == text
    assert (tmp_path / 'site' / 'figures' / 'phase.png').exists()
    monkeypatch.setattr(page, 'ADDRESS', address)
    readme = '[![words](figures/phase.gif)](phase.html) and [a link](phase.html)'
    wanted = readme.replace('gif)](phase.html)', f'gif)]({site or "phase.html"})')
    assert page.link(readme, 'phase.html') == wanted
    shown = page.link('<!-- badges -->\nold\n<!-- end -->', '')
    assert shown.count('](https://github.com/Some-One/phase/actions/') == (2 if address else 0)
    course = '/github/Some-One/phase/blob/main/lessons/course.ipynb)'
    assert (course in shown) == bool(address) and 'old' not in shown


def test_page_and_links_are_up_to_date():
    assert "default-src 'none'" in TEXT  # a browser loads nothing
    assert page.build(TEXT, repository.ADDRESS) == TEXT, 'run python -m lessons.page'
    for readme, beside in [('../README.md', 'lessons/phase.html'), ('README.md', 'phase.html')]:
        text = (page.LESSONS / readme).read_text(encoding='utf-8')
        assert page.LINK.search(text) and text == page.link(text, beside)


# ---- the page in a browser ---------------------------------------------------------------------

HASHES = [
    '#chapter=7.1&attention=nope', '#chapter=7.1&m=40&period=7', '#chapter=4.1&m=12&n=9&pair=2',
    '#chapter=7.1&attention=alibi&slope=0.1', '#chapter=2.10&strand=GATTACA&base=150&seed=4',
    '#chapter=7.1&attention=tapa&tokens=random&theta=0.25', '#chapter=2.10&layers=2',
    '#chapter=2.1&right=nope-10000-1',
    '#chapter=7.1&attention=spectral&tokens=random&Omega=1:0.63,2:0.1&A=1:1.2&Phi=3:-1']
WRONG = ['#chapter=9.9&m=abc', '#chapter=7.1&Omega=1:NaN,99:1,x&attention=foo&m=1e9',
         '#chapter=0.0&period=-4', '#chapter=4.1&m=500&n=-3&both=9', '#attention=toString',
         '#chapter=2.10&strand=XYZ&left=toString&update=7']


@pytest.mark.slow
@pytest.mark.parametrize('width, height, mobile', [
    (390, 664, True), (1024, 768, False), (1280, 720, False), (1440, 900, False)])
def test_every_step_is_drawn_and_fits(width, height, mobile, browser):
    browser.open('', width, height, mobile)
    steps = browser.run(f"""
        const steps = phase.CHAPTERS.flatMap(({{ steps }}, i) =>
          steps.map((_, j) => `#chapter=${{i + 1}}.${{j + 1}}`))
        const all = selector => [...document.querySelectorAll(selector)]
        const wider = part => part.scrollWidth > part.clientWidth + 1
        return [...steps, ...{HASHES + WRONG}].map(hash => {{
          phase.readAddress(hash)
          phase.show()
          const pictures = all('figure.shown .box > *')
          const words = document.getElementById('words')
          const named = part => part.getAttribute('aria-label') || part.labels?.length
          return {{
            hash, drawn: pictures.map(picture => picture.innerHTML).join('') + words.innerText,
            unnamed: [...pictures, ...all('input, select')].filter(part => !named(part)).length,
            error: document.getElementById('error').textContent, address: phase.address(),
            full: words.scrollHeight > words.clientHeight + 2,
            wide: wider(document.documentElement),
            cut: all('h2, output, button').filter(part => part.clientWidth && wider(part)).length,
            below: all('figure.shown, .control, button')
              .filter(part => part.getBoundingClientRect().bottom > innerHeight).length,
          }}
        }})""")
    assert len(steps) > 35
    for step in steps:
        assert step['error'] == '' and not re.search('NaN|undefined|Infinity', step['drawn']), step
        assert not (step['unnamed'] or step['full'] or step['wide'] or step['cut']), step
        assert mobile or not step['below'] or '7.1' in step['hash'], step
        if step['hash'] in HASHES:
            assert sorted(step['address'][1:].split('&')) == sorted(step['hash'][1:].split('&'))


@pytest.mark.slow
def test_a_reader_answers_trains_and_goes_back_in_time(browser):
    browser.open('#chapter=1.2')
    seen = browser.run("""
        const press = id => { document.getElementById(id).click(); phase.show() }
        const said = view => document.getElementById(`${view}-now`).textContent
        document.querySelector('[name=letter][value=G]').click()
        phase.show()
        press('confirm')
        const told = document.getElementById('words').textContent
        press('begin')
        press('next')  // shows the same run
        const mode = phase.mode()
        press('finish')
        while (phase.mode()) await new Promise(go => setTimeout(go, 100))
        phase.show()
        const end = [said('tokens'), said('turn'), said('map')]
        phase.change('update', 5)
        phase.show()
        const same = end.filter((words, i) => words === said(['tokens', 'turn', 'map'][i]))
        press('next')
        const scores = [said('parts'), said('row')].map(words => words.match(/score ([^,]+)/)[1])
        return { told, mode, right: end[0], same, scores, at: phase.address() }""")
    assert 'Not quite: it is T' in seen['told'] and seen['mode'] == 'training'
    assert seen['right'] == '40 of 40 right' and seen['same'] == []
    assert seen['scores'][0] == seen['scores'][1] and seen['at'] == '#chapter=1.5'


@pytest.mark.slow
def test_keys_go_from_step_to_step_and_move_a_slider(browser):
    browser.open('#chapter=2.10')

    def after(code):
        return browser.run(f'{code}; phase.show(); return phase.address()')

    for key, step in [('PageDown', '3.1'), ('ArrowRight', '3.2'), ('PageUp', '3.1')]:
        browser.ask('Input.dispatchKeyEvent', type='keyDown', key=key)
        assert after('') == f'#chapter={step}'
    after("phase.readAddress('#chapter=2.5'); phase.show(); document.getElementById('m').focus()")
    for kind in ('rawKeyDown', 'keyUp'):  # a slider has its own use for the arrow
        browser.ask('Input.dispatchKeyEvent', type=kind, key='ArrowRight', windowsVirtualKeyCode=39)
    assert after('') == '#chapter=2.5&m=11'
