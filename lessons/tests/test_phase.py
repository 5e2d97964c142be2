"""
lessons/phase.html gives the scores of model.py, draws every story, and loads nothing else.

The page runs in a headless Chromium, and its formulas in node as well. A test is skipped where
its program is missing, unless the environment variable CI_BROWSER is set.

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

import numpy as np
import pytest
import torch

from model import GRIDS, TAPA, GPTConfig, NoPE, RoPE, Spectral, distances

LESSONS = Path(__file__).resolve().parent.parent
PAGE = LESSONS / 'phase.html'
FIGURE = LESSONS / 'figures' / 'phase.png'
BROWSERS = ['chromium', 'chromium-browser', 'google-chrome', 'chrome']
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
        '--window-size=1440,925', *arguments]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode('utf-8')


def run_in_chromium(code, folder):
    """What the body of a function returns in the page, through JSON."""
    page = folder / 'page.html'
    result = f'JSON.stringify((() => {{ {code} }})())'
    script = f"""<pre id="result"></pre>
        <script>document.getElementById('result').textContent = {result}</script>"""
    text = PAGE.read_text(encoding='utf-8')
    page.write_text(text.replace('</body>', f'{script}</body>'), encoding='utf-8')
    dom = chromium(['--dump-dom', page.as_uri()], folder)
    found = re.search(r'<pre id="result">(.+?)</pre>', dom, flags=re.DOTALL)
    assert found, 'the page has failed before its end'
    return json.loads(html.unescape(found[1]))


def run_in_node(code, folder):
    """The same with the formulas alone, which need no page."""
    text = PAGE.read_text(encoding='utf-8')
    formulas = re.search(r'<script id="formulas">(.+?)</script>', text, flags=re.DOTALL)[1]
    script = folder / 'formulas.js'
    output = f'console.log(JSON.stringify((() => {{ {code} }})()))'
    script.write_text(f'{formulas}\n{output}\n', encoding='utf-8')
    done = subprocess.run(
        [program(['node']), str(script)], capture_output=True, timeout=120, check=True)
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
    """The scores (T, S) of model.py in float64, and of ALiBi's formula."""
    q = torch.from_numpy(q)[None, None]
    k = torch.from_numpy(k)[None, None]
    hs = q.size(-1)
    name = settings['attention']
    options = {key: settings[key] for key in settings if key.startswith('tapa_')}
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=settings['base'], **options)
    if name == 'alibi':
        scores = q @ k.mT / math.sqrt(hs) - settings['slope'] * distances(q, k)
        return scores[0, 0].numpy()
    attention = dict(rope=RoPE, spectral=Spectral, tapa=TAPA, nope=NoPE)[name](config)
    if name in ('rope', 'spectral'):
        attention.theta = GRIDS['geometric'](config)
    if name == 'spectral':
        for parameter in ('Omega', 'A', 'Phi'):
            getattr(attention, parameter).data = torch.tensor([settings[parameter]])
    with torch.no_grad():
        return attention.scores(q, k)[0, 0].numpy()


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
    theta = GRIDS['geometric'](GPTConfig(vocab_size=1, n_head=1, n_embd=32)).tolist()
    assert [in_64 for in_64, _ in run(right_turns(theta))] == [1, 0, 3] + 13 * [0]


def test_a_frequency_that_is_nearly_right_fails_beyond_the_training_length(run):
    frequencies = [0.63, 2 * math.pi / 10, 1695 ** (-1 / 16)]  # the last is pair 1 of base 1695
    assert run(right_turns(frequencies)) == [[6, 18], [6, 51], [6, 51]]


@pytest.mark.parametrize('alpha, factor', [(0.1, -0.97), (0.5, -0.27)])
def test_tapa_at_distance_2(run, alpha, factor):
    settings = dict(attention='tapa', tapa_alpha=alpha)
    q, k = [math.sqrt(2), 0, math.sqrt(2) / 2, 0], [1, 0, 1, 0]
    found = run(f'return [1, 2].map(d => phase.score({json.dumps(settings)}, {q}, {k}, d))')
    assert found == pytest.approx([-1, factor], abs=0.006)


# ---- the page ----------------------------------------------------------------------------------

def test_the_page_is_one_small_file():
    text = PAGE.read_text(encoding='utf-8')
    assert PAGE.stat().st_size <= 60_000
    loads = r'https?:|\bsrc\s*=|@import|\bimport\b|url\(|fetch\(|XMLHttpRequest|WebSocket|Beacon'
    assert re.findall(loads, text) == []
    assert re.findall(r'href\s*=\s*"([^"]*)"', text) == ['data:,']
    assert "default-src 'none'" in text  # then a browser loads nothing either


def test_every_step_of_every_story_is_drawn(tmp_path):
    steps = run_in_chromium("""
        const hashes = ['', '#attention=nope', '#attention=alibi&slope=0.1',
          '#attention=tapa&tokens=random&phase=linear&theta=0.25',
          '#attention=spectral&tokens=random&Omega=1:0.63,2:0.1&A=1:1.2&Phi=3:-1']
        STORIES.forEach((told, i) => told.steps.forEach((_, j) => {
          hashes.push(`#story=${i + 1}.${j + 1}`)
        }))
        return hashes.map(hash => {
          phase.readAddress(hash)
          phase.show()
          const pictures = [...document.querySelectorAll('figure svg')]
          return {
            hash, drawn: pictures.map(svg => svg.innerHTML),
            names: pictures.map(svg => svg.getAttribute('aria-label')),
            address: phase.address(), error: document.getElementById('error').textContent,
            loaded: performance.getEntriesByType('resource').length,
          }
        })""", tmp_path)
    assert len(steps) == 15
    for step in steps:
        assert step['error'] == ''
        assert step['loaded'] == 0
        assert sorted(step['address'].strip('#').split('&')) == \
            sorted(step['hash'].strip('#').split('&'))
        for picture in step['drawn']:
            assert len(picture) > 300
            assert not re.search('NaN|undefined|Infinity', picture)
        assert all(step['names'])


@pytest.mark.parametrize('hash', [
    '#story=9.9&m=abc', '#Omega=1:NaN,99:1,x&attention=foo&m=1e9', '#story=0.0&period=-4'])
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
        phase.readAddress('#attention=spectral&tokens=one')
        phase.show()
        return [...document.querySelectorAll('#controls input[type=range]')].map(slider => {
          const control = slider.closest('.control')
          const label = control.querySelector('label')
          const before = phase.address()
          slider.value = slider.value === slider.max ? slider.min : slider.max
          slider.dispatchEvent(new Event('input'))
          return { name: slider.id, label: label.htmlFor, moved: phase.address() !== before,
            number: control.querySelector('input[type=number]').getAttribute('aria-label') }
        })""", tmp_path)
    assert len(controls) == 15
    for control in controls:
        assert control['label'] == control['name']
        assert control['number']
        assert control['moved'], control['name']


def test_the_keyboard_keeps_its_place_at_the_ends_of_a_story(tmp_path):
    focused = run_in_chromium("""
        phase.readAddress('#story=2.2')
        phase.show()
        return ['next', 'back', 'back'].map(id => {
          document.getElementById(id).focus()
          document.getElementById(id).click()
          phase.show()
          return document.activeElement.id
        })""", tmp_path)
    assert focused == ['back', 'back', 'next']


def test_the_picture_of_the_page_is_small():
    assert FIGURE.stat().st_size <= 120_000


def draw(folder):
    """The picture for the README: a story at 1440 pixels, in few colours."""
    from PIL import Image  # comes with matplotlib

    # a window grows while it opens: pictures of a fixed height do not notice
    style = '<style>figure svg { height: 240px !important } footer { display: none }</style>'
    page = folder / 'page.html'
    text = PAGE.read_text(encoding='utf-8')
    page.write_text(text.replace('</head>', f'{style}</head>'), encoding='utf-8')
    chromium([f'--screenshot={FIGURE}', f'{page.as_uri()}#story=2.2'], folder)
    with Image.open(FIGURE) as picture:
        few = picture.convert('RGB').quantize(128, dither=Image.Dither.NONE)
    few.save(FIGURE, optimize=True)


if __name__ == '__main__':
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
