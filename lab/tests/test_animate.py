"""The moving picture: its page holds the log, is safe and needs no network, and a browser draws what the log says."""

import html.parser
import json
import math
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch

import eval as page_of_eval
from lab import animate
from lab.tests.conftest import Run

HARMONIC = 2 * math.pi / 10
EVIL = 'text:path=</script><script>document.title=1</script><!--&amp;'
BROWSERS = (os.environ.get('CHROME', ''), 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def write_run(folder, options={}, lines=()):
    """The folder of a run with one head of three pairs, of which the second locks onto 2 pi / 10."""
    folder.mkdir()
    options = dict(task='bio_rotation', attention='spectral', block_size=64) | options
    (folder / 'config.json').write_text(json.dumps(dict(options=options)))
    starts = [dict(iter=i, val_loss=loss, Omega=[[[1.0, omega, -0.01]]], A=[[[1.0, a, 0.5]]], Phi=[[[0.0, 0.1, 0.2]]])
              for i, loss, omega, a in ((0, 1.9, 0.56, 1.0), (20, 0.3, 0.6, 1.2), (40, 2e-7, HARMONIC + 2e-4, 2.0))]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines or starts))
    return folder


class Scripts(html.parser.HTMLParser):
    """What a browser takes for scripts: [{attributes}, text], and every attribute of every tag."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.attributes, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        self.inside = tag == 'script'
        if self.inside:
            self.scripts.append([dict(attributes), ''])

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, text):
        if self.inside:
            self.scripts[-1][1] += text


def embedded(text):
    """The data in a page. There are two scripts: the data and the program."""
    (attributes, data), program = Scripts(text).scripts
    assert attributes == {'id': 'run', 'type': 'application/json'} and program[0] == {}
    return json.loads(data)


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
def test_the_page_holds_the_log_of_a_run_of_train(tmp_path, attention, capsys):
    run = Run(tmp_path / 'run').train(f'--attention={attention}', '--task=bio_rotation:period=3', '--n_layer=2')
    animate.main([str(run.folder)])
    assert capsys.readouterr().out.endswith(f'wrote {run.folder}/animation.html; open it in a browser\n')
    data = embedded((run.folder / 'animation.html').read_text(encoding='utf-8'))
    lines = [line for line in run.log() if 'val_loss' in line]
    assert len(lines) == 3 and data['iterations'] == [line['iter'] for line in lines]
    assert data['losses'] == [line['val_loss'] for line in lines]
    assert all(data[name] == [line[name] for line in lines] for name in ('Omega', 'A', 'Phi'))
    assert [data[name] for name in ('period', 'block_size', 'task', 'attention')] == [
        3, 16, 'bio_rotation:period=3', attention]


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    text = animate.page(animate.read_run(write_run(tmp_path / 'run')))
    assert not re.search(r'https?:|//\w|@import|\bimport\b|url\(|fetch|XMLHttpRequest', text)
    addresses = [value for name, value in Scripts(text).attributes if name in ('src', 'href')]
    assert addresses == ['data:,']  # no icon: a browser would ask for one


def test_no_text_in_the_log_can_break_out_of_the_data(tmp_path):
    run = animate.read_run(write_run(tmp_path / 'run')) | dict(task=EVIL)
    assert embedded(animate.page(run))['task'] == EVIL
    assert EVIL.split('=')[1] not in animate.page(run)


def test_harmonics_are_those_of_eval():
    omegas = [HARMONIC + 9e-4, HARMONIC + 1.1e-3, -2 * HARMONIC, 10 * HARMONIC, 3e-4, 11 * HARMONIC]
    way = SimpleNamespace(Omega=torch.tensor([omegas]), A=torch.ones(1, 6), Phi=torch.ones(1, 6), theta=torch.ones(6))
    model = SimpleNamespace(blocks=[SimpleNamespace(attention=SimpleNamespace(way=way))])
    run = dict(period=10, locked=page_of_eval.LOCKED, Omega=[[[omegas]]])
    found = [row['harmonic'] * row['locked'] for row in page_of_eval.frequency_table(model, 10)]
    assert animate.harmonics(run, 0, 0, 0) == found == [1, 0, 2, 0, 0, 11]


def test_a_validation_that_is_not_finite_is_left_out(tmp_path):
    line = dict(iter=0, val_loss=1.0, Omega=[[[1.0]]], A=[[[1.0]]], Phi=[[[0.0]]], grad_norm=math.inf)
    lines = [line, line | dict(iter=1, val_loss=math.nan), line | dict(iter=2, Omega=[[[-math.inf]]]), dict(iter=3)]
    run = animate.read_run(write_run(tmp_path / 'run', lines=lines))
    assert run['iterations'] == [0] and embedded(animate.page(run))['losses'] == [1.0]


def test_errors_name_the_folder_and_what_is_allowed(tmp_path):
    with pytest.raises(FileNotFoundError, match='none/config.json does not exist: OUT_DIR must be the folder of a run'):
        animate.main([str(tmp_path / 'none')])
    for name, options, line, message in (
            ('empty', {}, dict(iter=0, train_loss=1.0), 'empty/log.jsonl has no validation: let train.py run'),
            ('rope', dict(attention='rope'), dict(iter=0, val_loss=1.0), "attention='rope' has no learned frequencies"),
            ('task', dict(task='dick'), None, "task 'dick' does not exist")):
        folder = write_run(tmp_path / name, options, [line] if line else ())
        with pytest.raises(ValueError, match=message):
            animate.main([str(folder)])
    (tmp_path / 'task' / 'config.json').write_text('{}')
    with pytest.raises(ValueError, match="config.json or log.jsonl is not of train.py: 'options'"):
        animate.main([str(tmp_path / 'task')])


def test_the_gif_shows_training_and_then_positions(tmp_path, monkeypatch):
    image = pytest.importorskip('PIL.Image')
    run = animate.read_run(write_run(tmp_path / 'run'))
    frames = animate.moments(run)
    assert frames[:3] == [(0, 10), (1, 10), (2, 10)] and frames[3:] == [(2, 10 + more) for more in range(1, 21)]
    assert len(animate.moments(run | dict(iterations=list(range(500))))) == 45
    monkeypatch.setattr(animate, 'moments', lambda run: frames[:4])
    animate.main([str(tmp_path / 'run'), '--gif', '--still'])
    with image.open(tmp_path / 'run' / 'animation.gif') as gif:
        assert gif.n_frames == 4 and gif.size == (580, 330)
    assert (tmp_path / 'run' / 'animation.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.parametrize('validation, m', [(0, 10), (2, 13)])
def test_a_hand_has_turned_by_m_omega_and_is_thick_where_it_is_locked(tmp_path, validation, m):
    figures = pytest.importorskip('matplotlib.figure')
    run = animate.read_run(write_run(tmp_path / 'run'))
    figure = figures.Figure()
    animate.draw(figure, run, validation, m)
    hands = [line for line in figure.axes[0].lines if line.get_color() in ('#777777', '#D55E00')]
    for line, omega, a in zip(hands, run['Omega'][validation][0][0], run['A'][validation][0][0], strict=True):
        x, y = (values[1] for values in line.get_data())
        length = 0.9 * a / 2  # 2 is the largest amplitude of the run
        assert (x, y) == pytest.approx((length * math.sin(m * omega), length * math.cos(m * omega)))
    assert [line.get_linewidth() > 3 for line in hands] == [False, validation == 2, False]


def browse(page, fragment, *options):
    """What a headless browser prints on stdout for a page, after a look at its console."""
    flags = ['--headless', '--disable-gpu', '--enable-logging=stderr', '--v=0', '--window-size=900,900',
             f'--user-data-dir={page.parent}/profile', *(['--no-sandbox'] if os.geteuid() == 0 else [])]
    done = subprocess.run([BROWSER, *flags, *options, f'{page.as_uri()}#{fragment}'], text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0 and not [line for line in done.stderr.splitlines() if 'CONSOLE' in line], done.stderr
    return done.stdout


@pytest.mark.skipif(not BROWSER, reason='no browser: neither chromium nor google-chrome is on PATH or in CHROME')
def test_in_a_browser(tmp_path):
    folder = write_run(tmp_path / 'run', dict(task='bio_rotation:period=10'))
    page, pictures = folder / 'animation.html', set()
    animate.main([str(folder)])
    for i, fragment in enumerate(('iteration=0&position=10', 'iteration=40&position=10', 'iteration=39&position=13')):
        browse(page, fragment, f'--screenshot={folder}/{i}.png')
        pictures.add((folder / f'{i}.png').read_bytes())
    assert len(pictures) == 3 and min(map(len, pictures)) > 10_000
    shown = browse(page, 'iteration=39&position=13&head=7', '--dump-dom')  # there is no head 7
    assert '<p id="error" role="alert"></p>' in shown and '<title>bio_rotation:period=10, spectral' in shown
    assert 'Iteration 40: 1 of 3 hands locked (pair 1 on j = 1), validation loss 2e-7 nats. Token 13.' in shown
    hands = re.findall(r'<line class="(hand|locked)" x1="[^"]*" y1="[^"]*" x2="([^"]*)" y2="([^"]*)"', shown)
    expected = [(kind, 140 * a / 2 * math.sin(13 * omega), -140 * a / 2 * math.cos(13 * omega))
                for kind, omega, a in (('hand', 1.0, 1.0), ('hand', -0.01, 0.5), ('locked', HARMONIC + 2e-4, 2.0))]
    for (kind, x, y), (wanted, *place) in zip(hands, expected, strict=True):
        assert kind == wanted and (float(x), float(y)) == pytest.approx(place, abs=0.01)
    assert shown.count('class="tick"') == 10


@pytest.mark.skipif(not BROWSER, reason='no browser: neither chromium nor google-chrome is on PATH or in CHROME')
def test_its_keys_and_buttons_in_a_browser(tmp_path):
    """A copy of the page presses its own keys: after 2 s of play, the training is at its end and the position moves."""
    animate.main([str(write_run(tmp_path / 'run'))])
    program = """<script>
        const press = key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
        const seen = []
        const look = () => seen.push($('now').textContent.match(/Iteration (\\d+).*Token (\\d+)/).slice(1).join(' '))
        const keys = ['ArrowLeft', 'ArrowLeft', 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'ArrowDown']
        for (const key of keys) { press(key); look() }
        $('train').click()
        press('p')
        seen.push($('train').textContent)
        setTimeout(() => { press('P'); look(); seen.push($('train').textContent) }, 2100)
        setTimeout(() => { look(); document.title = seen.join() }, 3000)
    </script>"""
    page = tmp_path / 'run' / 'pressed.html'
    page.write_text((tmp_path / 'run' / 'animation.html').read_text(encoding='utf-8') + program, encoding='utf-8')
    shown = browse(page, 'iteration=40&position=10', '--virtual-time-budget=4000', '--dump-dom')
    title = re.search('<title>(.*)</title>', shown)[1].split(',')
    assert title[:7] == ['20 10', '0 10', '0 10', '20 10', '20 11', '20 10', '20 9']
    assert title[7:] == ['pause', '40 17', 'play', '40 17']  # 8 tokens in 2.1 s of the browser's virtual time
