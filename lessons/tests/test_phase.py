"""
lessons/phase.html trains as model.py does, gives its scores, draws every step, and loads nothing.

The page runs in a headless Chromium, and its formulas and its training in node as well. A test is
skipped where its program is missing, unless the environment variable CI_BROWSER is set. CHROME may
name a browser that is not on the PATH.

    python -m lessons.tests.test_phase      # draws lessons/figures/phase.png again
"""

import html
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
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

PAGE = page.PAGE
FIGURE = page.PICTURE
BROWSERS = ['chromium', os.environ.get('CHROME', ''), 'chromium-browser', 'google-chrome', 'chrome']
ATTENTIONS = ['rope', 'spectral', 'quadratic', 'linear', 'nope', 'alibi']


# ---- programs that run the page ----------------------------------------------------------------

def program(names):
    """The path of the first of these programs, or a skipped test; a failed one in CI_BROWSER."""
    for name in names:
        if path := shutil.which(name):
            return path
    reason = f'there is no {names[0]} here'
    if os.environ.get('CI_BROWSER'):
        pytest.fail(reason)
    pytest.skip(reason)


def chromium(arguments, folder):
    command = [
        program(BROWSERS), '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
        f'--user-data-dir={folder / "profile"}', '--virtual-time-budget=3000',
        '--window-size=1440,900', *arguments]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode('utf-8')


def run_in_chromium(code, folder):
    """What the body of a function returns in the page, through JSON."""
    path = folder / 'page.html'
    result = f'JSON.stringify((() => {{ {code} }})())'
    script = f"""<pre id="result"></pre>
        <script>document.getElementById('result').textContent = {result}</script>"""
    text = PAGE.read_text(encoding='utf-8')
    text = text.replace("script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'unsafe-eval'")
    path.write_text(text.replace('</body>', f'{script}</body>'), encoding='utf-8')
    dom = chromium(['--dump-dom', path.as_uri()], folder)
    found = re.search(r'<pre id="result">(.+?)</pre>', dom, flags=re.DOTALL)
    assert found, 'the page has failed before its end'
    return json.loads(html.unescape(found[1]))


def script(name):
    """The text of one of the page's scripts: its formulas, or the model that it trains."""
    text = PAGE.read_text(encoding='utf-8')
    return re.search(rf'<script id="{name}"[^>]*>(.+?)</script>', text, flags=re.DOTALL)[1]


def run_in_node(code, folder, name='formulas'):
    """The same with one script alone, which needs no page."""
    path = folder / f'{name}.js'
    output = f'console.log(JSON.stringify((() => {{ {code} }})()))'
    path.write_text(f'{script(name)}\n{output}\n', encoding='utf-8')
    done = subprocess.run(
        [program(['node']), str(path)], capture_output=True, timeout=600, check=True)
    return json.loads(done.stdout)


@pytest.fixture(params=[run_in_chromium, run_in_node], ids=['chromium', 'node'])
def run(request, tmp_path):
    return lambda code: request.param(code, tmp_path)


# ---- the formulas ------------------------------------------------------------------------------

@pytest.fixture
def float64():
    """Whole distances to a power are of PyTorch's default type: too coarse for 1e-5 in float32."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def random_case(seed):
    """Settings of the page, a query for each of T tokens and a key for each of S, as arrays."""
    rng = np.random.default_rng(seed)
    attention = ATTENTIONS[seed % len(ATTENTIONS)]
    hs = int(rng.choice([4, 8, 32]))
    S = int(rng.integers(2, 70))
    T = min(S, 3)
    settings = dict(attention=attention, base=float(10 ** rng.uniform(1, 6)))
    if attention == 'spectral':
        settings['Omega'] = rng.uniform(-3, 3, hs // 2).tolist()
        settings['A'] = rng.uniform(-1.5, 1.5, hs // 2).tolist()
        settings['Phi'] = rng.uniform(-3, 3, hs // 2).tolist()
    if attention == 'alibi':
        settings['slope'] = float(rng.uniform(0, 1))
    if attention in ('quadratic', 'linear'):
        settings['attention'] = 'tapa'
        settings['tapa_phase'] = attention
        settings['tapa_alpha'] = float(rng.uniform(0.05, 1))
        settings['tapa_theta'] = int(rng.integers(1, hs)) / hs
        settings['tapa_scale'] = float(rng.uniform(0.5, 7))
    return settings, rng.normal(size=(T, hs)), rng.normal(size=(S, hs))


def expected_scores(settings, q, k):
    """The scores (T, S) of model.py in float64; of ALiBi and of linear TAPA by their formulas."""
    q = torch.from_numpy(q)[None, None]
    k = torch.from_numpy(k)[None, None]
    T, S, hs = q.size(2), k.size(2), q.size(3)
    name = settings['attention']
    options = {key: settings[key] for key in settings if key.startswith('tapa_')}
    linear = options.pop('tapa_phase', '') == 'linear'
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=settings['base'], **options)
    away = distances(q, k)
    if name == 'alibi':
        return (q @ k.mT / math.sqrt(hs) - settings['slope'] * away)[0, 0].numpy()
    if linear:
        hs_A = round(config.tapa_theta * hs)
        amplitude = q[..., :hs_A] @ k[..., :hs_A].mT / math.sqrt(hs_A)
        sums = q[..., hs_A:].sum(-1)[..., None] + k[..., hs_A:].sum(-1)[..., None, :]
        phi = sums / math.sqrt(hs - hs_A)
        angle = config.tapa_scale * away.abs() ** config.tapa_alpha * phi
        return (amplitude * angle.cos())[0, 0].numpy()
    attention = CLASSES[name](config)
    if name in ('rope', 'spectral'):
        attention.theta = geometric(config)
    if name == 'spectral':
        for parameter in ('Omega', 'A', 'Phi'):
            getattr(attention, parameter).data = torch.tensor([settings[parameter]])
    with torch.no_grad():
        if attention.scores is not None:
            return attention.scores(q, k)[0, 0].numpy()
        q, _ = attention.rotate(q, q, torch.arange(S - T, S))
        _, k = attention.rotate(k, k, torch.arange(S))
        return (q @ k.mT / math.sqrt(hs))[0, 0].numpy()


def test_scores_are_those_of_the_model(run, float64):
    cases = [random_case(seed) for seed in range(50)]
    given = [[settings, q.tolist(), k.tolist()] for settings, q, k in cases]
    found = run(f'return {json.dumps(given)}.map(([s, q, k]) => phase.scores(s, q, k))')
    for case, scores in zip(cases, found, strict=True):
        np.testing.assert_allclose(scores, expected_scores(*case), atol=1e-5, err_msg=case[0])


def right_turns(frequencies):
    """JavaScript: how many turns of 10 letters each pair gets right, in 64 tokens and in 512."""
    return f"""
        return {frequencies}.map(frequency => {{
          const values = Array.from({{ length: 530 }}, (_, d) => Math.cos(d * frequency))
          const right = length => phase.turns(values, 10, length).filter(turn => turn.right).length
          return [right(64), right(512)]
        }})"""


def test_no_pair_of_base_10000_fits_a_period_of_10(run):
    theta = geometric(GPTConfig(vocab_size=1, n_head=1, n_embd=32)).tolist()
    assert [in_64 for in_64, _ in run(right_turns(theta))] == [1, 0, 3] + 13 * [0]


def test_a_frequency_that_is_nearly_right_fails_beyond_the_training_length(run):
    frequencies = [0.6314, 2 * math.pi / 10, 1695 ** (-1 / 16)]  # the last is pair 1 of base 1695
    assert run(right_turns(frequencies)) == [[6, 10], [6, 51], [6, 51]]


@pytest.mark.parametrize('alpha, factor', [(0.1, -0.97), (0.5, -0.27)])
def test_tapa_at_distance_2(run, alpha, factor):
    settings = dict(attention='tapa', tapa_alpha=alpha)
    q, k = [math.sqrt(2), 0, math.sqrt(2) / 2, 0], [1, 0, 1, 0]
    found = run(f'return [1, 2].map(d => phase.score({json.dumps(settings)}, {q}, {k}, d))')
    assert found == pytest.approx([-1, factor], abs=0.006)


@pytest.mark.parametrize('name', ['pi', 'ntk', 'yarn'])
@pytest.mark.parametrize('base, hs, factor, length', [(1e4, 32, 4, 64), (5e5, 128, 8, 8192)])
def test_extensions_are_those_of_the_lab(run, name, base, hs, factor, length):
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=base, block_size=length)
    config.frequencies = f'{name}:factor={factor}'
    found = run(f'return phase.stretched("{name}", {base}, {hs}, {factor}, {length})')
    np.testing.assert_allclose(found, LAB_FREQUENCIES[name](config).numpy(), rtol=1e-9)


def test_neighbours_are_the_same_rotation_in_another_order(run):
    assert run('return phase.fromNeighbours([0, 1, 2, 3, 4, 5])') == [0, 2, 4, 1, 3, 5]


# ---- the training ------------------------------------------------------------------------------

WEIGHTS = dict(
    embedding='embedding', norm_1='blocks.0.norm_1', qkv='blocks.0.attention.qkv',
    proj='blocks.0.attention.proj', norm_2='blocks.0.norm_2', gate='blocks.0.mlp.gate',
    up='blocks.0.mlp.up', down='blocks.0.mlp.down', norm='norm', lm_head='lm_head')
LEARNED = {name: f'blocks.0.attention.{name}' for name in ('Omega', 'A', 'Phi')}
UPDATES = 10


def train_model(attention):
    """
    The same as the page's recipe, by model.py and optim.py: the initial weights, ten batches, and
    {losses, the first gradients, the last weights}, as lists.
    """
    task = make_task('bio_rotation')
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=6, n_layer=1, n_head=1, n_embd=32, block_size=51,
                          attention=attention, rope_base=1000.0))
    parameters = dict(model.named_parameters())
    names = {name: f'{place}.weight' for name, place in WEIGHTS.items()}
    if attention == 'spectral':
        names |= LEARNED

    def lists(read):
        return {name: read(parameters[place]).flatten().tolist() for name, place in names.items()}

    given = dict(weights=lists(lambda p: p.detach()), batches=[])
    expected = dict(losses=[])
    recipe = SimpleNamespace(optimizer='adamw', learning_rate=1.6e-2, positional_lr=1e-2,
                             weight_decay=0.1, beta1=0.9, beta2=0.99)
    optimizers = configure_optimizers(model, recipe)
    for it in range(UPDATES):
        x, y = task.sample(make_rng(0, 'train', it, 0), 8, 51)
        given['batches'].append(dict(idx=x.flatten().tolist(), targets=y.flatten().tolist()))
        _, loss = model(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        expected['losses'].append(loss.item())
        if it == 0:
            expected['gradients'] = lists(lambda p: p.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group['lr'] = group['peak_lr'] * schedule(it, 120, 20, 0.0)
            optimizer.step()
            optimizer.zero_grad()
    expected['weights'] = lists(lambda p: p.detach())
    return given, expected


def train_page(attention, given):
    """JavaScript: the same by the page's Run."""
    return f"""
        const given = {json.dumps(given)}
        const run = new Run({{ attention: '{attention}', base: 1000 }})
        const names = Object.keys(given.weights)
        for (const name of names) run.model[name].value.set(given.weights[name])
        const lists = kind =>
          Object.fromEntries(names.map(name => [name, Array.from(run.model[name][kind])]))
        const found = {{ losses: [] }}
        for (const batch of given.batches) {{
          found.losses.push(run.update(batch).loss)
          found.gradients ??= lists('grad')
        }}
        found.weights = lists('value')
        return found"""


def check_training(found, expected):
    """Losses to 1e-4; gradients and weights to 1e-4 of the largest in their tensor."""
    np.testing.assert_allclose(found['losses'], expected['losses'], rtol=0, atol=1e-4)
    for kind in ('gradients', 'weights'):
        for name, numbers in expected[kind].items():
            largest = np.abs(numbers).max()
            np.testing.assert_allclose(found[kind][name], numbers, rtol=0, atol=1e-4 * largest,
                                       err_msg=f'{kind} of {name}')


@pytest.mark.parametrize('attention', ['spectral', 'rope', 'nope'])
def test_the_page_trains_as_model_py_does(attention, tmp_path):
    given, expected = train_model(attention)
    check_training(run_in_node(train_page(attention, given), tmp_path, 'model'), expected)


def test_the_page_trains_as_model_py_does_in_a_browser(tmp_path):
    given, expected = train_model('spectral')
    code = f"""const page = {{}}
        const module = document.getElementById('model').textContent
        new Function('page', module + ';page.Run = Run')(page)
        const Run = page.Run; {train_page('spectral', given)}"""
    check_training(run_in_chromium(code, tmp_path), expected)


def test_the_page_has_the_task_of_tasks_py(tmp_path):
    found = run_in_node('return sample(makeRandom(1), 7, 3, 40)', tmp_path, 'model')
    x = np.array(found['idx']).reshape(3, 40)
    task = make_task('bio_rotation:period=7')
    assert ((x[:, 1:8] >= 1) & (x[:, 1:8] <= 4)).all()
    assert (x[:, 0] == 0).all() and (x[:, 8:] == 5).all()
    np.testing.assert_array_equal(np.array(found['targets']).reshape(3, 40), task.targets(x))


def test_crystallising_moves_each_frequency_to_its_nearest_multiple(tmp_path):
    found = run_in_node("""
        const run = new Run({ base: 100 })
        const before = Array.from(run.model.Omega.value)
        const losses = run.periods()
        const same = before.every((Omega, i) => Omega === run.model.Omega.value[i])
        run.crystallise(10)
        return { before, after: Array.from(run.model.Omega.value), same, losses }""",
                        tmp_path, 'model')
    unit = 2 * math.pi / 10
    assert found['same'] and [row['q'] for row in found['losses']] == list(range(2, 25))
    np.testing.assert_allclose(found['after'], unit * np.round(np.array(found['before']) / unit),
                               atol=1e-6)


@pytest.mark.slow
def test_spectral_learns_the_strand_from_a_base_with_which_rope_does_not(tmp_path):
    right = run_in_node("""
        return [['spectral', 1], ['rope', 1], ['spectral', 2]].map(([attention, seed]) => {
          const run = new Run({ attention, seed, base: 10000 })
          for (let i = 0; i < 80; i++) run.update()
          return run.evaluate(run.T).right
        })""", tmp_path, 'model')
    assert right[0] == 1 and max(right[1:]) < 0.9  # and not with every seed


@pytest.mark.slow
def test_the_run_of_chapter_1_ends_at_the_frequency_that_chapter_3_names(tmp_path):
    Omega = run_in_node("""
        const run = new Run({ attention: 'spectral', base: 10000, seed: 1 })
        for (let i = 0; i < 120; i++) run.update()
        return run.model.Omega.value[1]""", tmp_path, 'model')
    assert Omega == pytest.approx(0.6314, abs=2e-4)


# ---- the page ----------------------------------------------------------------------------------

def test_the_page_is_one_small_file_and_up_to_date():
    text = PAGE.read_text(encoding='utf-8')
    assert PAGE.stat().st_size <= 120_000
    module = page.MODULE.read_text(encoding='utf-8').splitlines()
    assert len(module) <= 450 and max(map(len, module)) <= 100
    assert text == page.build(text, repository.ADDRESS), 'run python -m lessons.page'


def test_the_page_loads_nothing():
    text = PAGE.read_text(encoding='utf-8')
    loads = r'\bsrc\s*=|@import|\bimport\b|url\(|fetch\(|XMLHttpRequest|WebSocket|Beacon'
    assert re.findall(loads, text) == []
    links = re.findall(r'<link[^>]*href="([^"]*)"', text)
    assert links == ['data:,']
    assert "default-src 'none'" in text  # then a browser loads nothing either


@pytest.mark.parametrize('address, site', [
    ('', ''), ('https://github.com/Some-One/phase', 'https://some-one.github.io/phase/')])
def test_the_address_stands_in_one_place(address, site, tmp_path):
    text = page.build(PAGE.read_text(encoding='utf-8'), address)
    assert f"const REPOSITORY = '{address}'" in text
    assert f'og:image" content="{site}figures/phase.png"' in text
    assert repository.website(address) == site
    page.publish(tmp_path / 'site', address)
    assert (tmp_path / 'site' / 'index.html').read_text(encoding='utf-8') == text
    assert (tmp_path / 'site' / 'figures' / 'phase.png').exists()


@pytest.mark.parametrize('folder, beside', [('..', 'lessons/phase.html'), ('.', 'phase.html')])
def test_the_picture_in_a_readme_leads_to_the_page(folder, beside):
    text = (page.LESSONS / folder / 'README.md').read_text(encoding='utf-8')
    assert page.LINK.search(text) and text == page.link(text, beside), 'run python -m lessons.page'


def test_the_picture_leads_to_the_website_once_there_is_one(monkeypatch):
    monkeypatch.setattr(page, 'ADDRESS', 'https://github.com/you/phase')
    text = '[![words](figures/phase.png)](phase.html) and [a link](phase.html)'
    site = 'https://you.github.io/phase/'
    assert page.link(text, 'phase.html') == text.replace('png)](phase.html)', f'png)]({site})')


def test_a_page_without_a_place_for_the_module_is_an_error():
    with pytest.raises(ValueError, match='0 times'):
        page.build('<html></html>', '')


EVERY_STEP = """
    const steps = []
    phase.CHAPTERS.forEach((chapter, i) => chapter.steps.forEach((_, j) => {
      steps.push(`#chapter=${i + 1}.${j + 1}`)
    }))"""


def test_every_step_is_drawn(tmp_path):
    steps = run_in_chromium(f"""{EVERY_STEP}
        const hashes = [...steps, '#chapter=7.1&attention=nope', '#chapter=7.1&m=40&period=7',
          '#chapter=7.1&attention=alibi&slope=0.1', '#chapter=4.1&m=12&n=9&pair=2',
          '#chapter=7.1&attention=tapa&tokens=random&phase=linear&theta=0.25',
          '#chapter=7.1&attention=spectral&tokens=random&Omega=1:0.63,2:0.1&A=1:1.2&Phi=3:-1']
        return hashes.map(hash => {{
          phase.readAddress(hash)
          phase.show()
          const pictures = [...document.querySelectorAll('figure.shown .box > *')]
          return {{
            hash, drawn: pictures.map(picture => picture.innerHTML).join(''),
            names: pictures.map(picture => picture.getAttribute('aria-label')),
            address: phase.address(), error: document.getElementById('error').textContent,
            loaded: performance.getEntriesByType('resource').map(entry => entry.name),
          }}
        }})""", tmp_path)
    assert len(steps) > 25
    for step in steps:
        assert step['error'] == ''
        assert all(name.startswith('blob:') for name in step['loaded'])
        if step['hash'] != '#chapter=1.1':  # the page opens with it
            wanted = sorted(step['hash'].strip('#').split('&'))
            assert sorted(step['address'].strip('#').split('&')) == wanted
        assert not re.search('NaN|undefined|Infinity', step['drawn'])
        assert all(step['names'])


def test_words_are_short_enough_for_their_place(tmp_path):
    """The place of the words has a fixed height, so that no picture jumps from step to step."""
    too_long = run_in_chromium(f"""{EVERY_STEP}
        return steps.filter(hash => {{
          phase.readAddress(hash)
          phase.show()
          const words = document.getElementById('words')
          const shown = [...document.querySelectorAll('figure.shown, .control, button')]
          const below = shown.some(part => part.getBoundingClientRect().bottom > innerHeight)
          return words.scrollHeight > words.clientHeight + 2 || (below && !hash.includes('7.1'))
        }})""", tmp_path)
    assert too_long == []


@pytest.mark.parametrize('hash', [
    '#chapter=9.9&m=abc', '#chapter=7.1&Omega=1:NaN,99:1,x&attention=foo&m=1e9',
    '#chapter=0.0&period=-4', '#chapter=4.1&m=500&n=-3&both=9', '#attention=toString'])
def test_a_wrong_address_does_no_harm(hash, tmp_path):
    found = run_in_chromium(f"""
        phase.readAddress({json.dumps(hash)})
        phase.show()
        return document.getElementById('error').textContent + document.querySelector('main')
          .innerHTML""", tmp_path)
    assert 'NaN' not in found
    assert 'This page fails' not in found


def test_every_control_has_a_name_and_answers(tmp_path):
    controls = run_in_chromium("""
        phase.readAddress('#chapter=7.1&attention=spectral&tokens=one')
        phase.show()
        const sliders = [...document.querySelectorAll('.control:not([hidden]) input[type=range]')]
        return sliders.map(slider => {
          const control = slider.closest('.control')
          const label = control.querySelector('label')
          const before = phase.address()
          slider.value = slider.value === slider.max ? slider.min : slider.max
          slider.dispatchEvent(new Event('input'))
          return { name: slider.id, label: label.htmlFor, moved: phase.address() !== before,
            number: control.querySelector('input[type=number]').getAttribute('aria-label') }
        })""", tmp_path)
    assert len(controls) == 9
    for control in controls:
        assert control['label'] == control['name']
        assert control['number']
        assert control['moved'], control['name']


def test_keys_step_and_the_focus_stays_at_the_ends(tmp_path):
    found = run_in_chromium("""
        const press = (key, where = document.body) => {
          where.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
          phase.show()
          return phase.address()
        }
        phase.readAddress('#chapter=1.2')
        phase.show()
        const steps = ['PageDown', 'ArrowRight', 'ArrowLeft', 'PageUp'].map(key => press(key))
        const slider = document.getElementById('blank')
        const kept = press('ArrowRight', slider)
        document.getElementById('back').focus()
        document.getElementById('back').click()
        phase.show()
        return { steps, kept, focus: document.activeElement.id }""", tmp_path)
    assert found['steps'] == [f'#chapter={step}' for step in ('1.3', '2.1', '1.3', '1.2')]
    assert found['kept'] == '#chapter=1.2'
    assert found['focus'] == 'next'


@pytest.mark.parametrize('end', [
    "document.getElementById('next').click()", "document.getElementById('back').click()",
    "document.querySelector('[data-chapter=\"6\"]').click()"])
def test_play_stops_when_the_step_changes(end, tmp_path):
    found = run_in_chromium(f"""
        phase.readAddress('#chapter=2.7')
        phase.show()
        document.getElementById('play').click()
        phase.show()
        const playing = phase.mode()
        {end}
        phase.show()
        return [playing, phase.mode()]""", tmp_path)
    assert found == ['playing', None]


def test_a_training_goes_on_as_long_as_the_steps_show_its_run(tmp_path):
    found = run_in_chromium("""
        const modes = []
        const note = () => { phase.show(); modes.push(phase.mode()) }
        phase.readAddress('#chapter=1.1')
        document.getElementById('begin').click()
        note()
        for (let step = 0; step < 2; step++) {
          document.getElementById('next').click()
          note()
        }
        return [modes, phase.address()]""", tmp_path)
    assert found == [['training', 'training', None], '#chapter=2.1']


def test_the_picture_of_the_page_is_small():
    assert FIGURE.stat().st_size <= 120_000


def draw(folder):
    """The picture for the README and for previews: a trained transformer, in few colours."""
    from PIL import Image  # comes with matplotlib

    # the window of a browser may be less high than its screenshot
    learned = """<style>.page { height: 675px }</style><script>
        phase.readAddress('#chapter=1.3')
        const module = document.getElementById('model').textContent
        new Function('page', module + ';page.Run = Run')(phase)
        const run = new phase.Run(phase.runs[0].options)
        const shown = { options: run.options, losses: [], path: [run.look().Omega], look: null }
        for (let i = 0; i < 120; i++) {
          shown.losses.push(run.update().loss)
          shown.path.push(Array.from(run.model.Omega.value))
        }
        phase.runs[0] = { ...shown, look: run.look(), begun: new Promise(() => {}) }
        phase.show()</script>"""
    text = PAGE.read_text(encoding='utf-8')
    text = text.replace("script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'unsafe-eval'")
    path = folder / 'page.html'
    path.write_text(text.replace('</body>', f'{learned}</body>'), encoding='utf-8')
    chromium([f'--screenshot={FIGURE}', '--window-size=1200,675', path.as_uri()], folder)
    with Image.open(FIGURE) as picture:
        few = picture.convert('RGB').quantize(256, Image.Quantize.FASTOCTREE, dither=0)
    few.save(FIGURE, optimize=True)


if __name__ == '__main__':
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
