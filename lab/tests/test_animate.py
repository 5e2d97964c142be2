"""The moving picture: its page holds the log, is safe, and a browser shows what the log says."""

import html.parser
import json
import math
import os
import re
import shutil
import subprocess

import pytest
import torch

from eval import frequency_table
from lab import animate
from lab.tests.conftest import Run, build
from model import UserError

HARMONIC = 2 * math.pi / 10
EVIL = 'text:path=</script><script>document.title=1</script><!--&amp;'
BROWSERS = (os.environ.get('CHROME', ''), 'chromium', 'chromium-browser', 'google-chrome')
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
in_a_browser = pytest.mark.skipif(not BROWSER, reason='no chromium on PATH, none in CHROME')


def write_run(folder, lines=(), n_kv_head=1, **options):
    """The folder of a run with one head of three pairs; the second locks onto 2 pi / 10."""
    folder.mkdir()
    options = dict(task='bio_rotation', attention='spectral', block_size=64) | options
    config = dict(options=options, task=options['task'], model_args=dict(n_kv_head=n_kv_head))
    (folder / 'config.json').write_text(json.dumps(config))
    log = [(0, 1.9, 0.56, 1.0), (20, 0.3, 0.6, 1.2), (40, 2e-7, HARMONIC + 2e-4, 2.0)]
    log = [dict(iter=it, val_loss=loss, Omega=[[[1.0, omega, -0.01]]], A=[[[1.0, a, 0.5]]],
                Phi=[[[0.0, 0.1, 0.2]]]) for it, loss, omega, a in log]
    text = ''.join(json.dumps(line) + '\n' for line in lines or log)
    (folder / 'log.jsonl').write_text(text)
    return folder


class Scripts(html.parser.HTMLParser):
    """What a browser takes for scripts: [{attributes}, text]; every attribute of every tag."""

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


@pytest.mark.parametrize('attention, heads', [
    ('spectral', [['head 0', 'head 1']] * 2), ('bifocal', [['head 1']] * 2),
    ('rope,bifocal', [[], ['head 1']]), ('bifocal,spectral', [['head 1'], ['head 0', 'head 1']])])
def test_the_page_holds_the_log_of_a_run_of_train(tmp_path, attention, heads, capsys):
    task = 'bio_rotation:period=3'
    run = Run(tmp_path / 'run').train(f'--attention={attention}', f'--task={task}', '--n_layer=2')
    animate.main([str(run.folder)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f'wrote {run.folder}/animation.html; open it in a browser'
    data = embedded((run.folder / 'animation.html').read_text(encoding='utf-8'))
    lines = [line for line in run.log() if 'val_loss' in line]
    assert len(lines) == 3 and data['iterations'] == [line['iter'] for line in lines]
    assert data['losses'] == [line['val_loss'] for line in lines]
    assert all(data[name] == [line[name] for line in lines] for name in ('Omega', 'A', 'Phi'))
    facts = dict(period=3, block_size=16, task=task, attention=attention, heads=heads)
    assert {name: data[name] for name in facts} == facts


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    text = animate.page(animate.read_run(write_run(tmp_path / 'run')))
    assert not re.search(r'https?:|//\w|@import|\bimport\b|url\(|fetch|XMLHttpRequest', text)
    addresses = [value for name, value in Scripts(text).attributes if name in ('src', 'href')]
    assert addresses == ['data:,']  # no icon: a browser would ask for one


def test_no_text_in_the_log_can_break_out_of_the_data(tmp_path):
    run = animate.read_run(write_run(tmp_path / 'run', task=EVIL))
    assert embedded(animate.page(run))['task'] == EVIL
    assert EVIL.split('=')[1] not in animate.page(run)


def test_what_is_locked_is_that_of_eval_and_what_is_near_holds_for_the_training_length():
    omegas = [HARMONIC + 9e-4, HARMONIC + 4e-3, -2 * HARMONIC, 10 * HARMONIC, 6e-3 - HARMONIC]
    model = build(attention='spectral', n_layer=1, n_head=1, n_embd=10)
    Omega = model.blocks[0].attention.Omega
    Omega.data.copy_(torch.tensor([omegas]))
    run = dict(period=10, block_size=64, Omega=[[Omega.tolist()]])
    kinds = animate.kinds(run, 0, 0, 0)
    assert kinds == ['locked', 'near', 'locked', 'hand', 'hand']
    locked = [row['locked'] for row in frequency_table(model, 10)]
    assert locked == [kind == 'locked' for kind in kinds]
    assert animate.kinds(run | dict(period=None), 0, 0, 0) == 5 * ['hand']


def test_a_validation_that_is_not_finite_is_left_out(tmp_path):
    line = dict(iter=0, val_loss=1.0, Omega=[[[1.0]]], A=[[[1.0]]], Phi=[[[0.0]]],
                grad_norm=math.inf)
    lines = [line, line | dict(iter=1, val_loss=math.nan),
             line | dict(iter=2, Omega=[[[-math.inf]]]), dict(iter=3)]
    run = animate.read_run(write_run(tmp_path / 'run', lines))
    assert run['iterations'] == [0] and embedded(animate.page(run))['losses'] == [1.0]


def test_a_missing_folder_and_a_run_without_frequencies_are_one_line(tmp_path):
    with pytest.raises(UserError, match='none: it has no config.json'):
        animate.main([str(tmp_path / 'none')])
    cases = [('empty', {}, dict(iter=0, train_loss=1.0), 'log.jsonl has no validation: let train'),
             ('rope', dict(attention='rope'), dict(iter=0, val_loss=1.0),
              'attention=rope has no learned frequencies'),
             ('task', dict(task='dick'), None, "task 'dick' does not exist")]
    for name, options, line, message in cases:
        write_run(tmp_path / name, [line] if line else (), **options)
        with pytest.raises(UserError, match=message):
            animate.main([str(tmp_path / name)])


GOOD = dict(iter=0, val_loss=1.0, Omega=[[[1.0]]], A=[[[1.0]]], Phi=[[[0.0]]])


@pytest.mark.parametrize('options, lines, config', [
    (dict(block_size=0), [GOOD], None), (dict(block_size=10**399), [GOOD], None),
    (dict(task=None), [GOOD], None),
    ({}, [GOOD | dict(Omega=[[['x']]])], None), ({}, [GOOD | dict(Omega=[[1.0]])], None),
    ({}, [GOOD | dict(Omega=[[]], A=[[]], Phi=[[]])], None), ({}, [GOOD, dict(GOOD, A=7)], None),
    ({}, [GOOD | dict(iter=10**399)], None), ({}, [GOOD | dict(val_loss=10**399)], None),
    ({}, [GOOD | dict(Omega=[[[10**399]]])], None), ({}, [GOOD | dict(val_loss=None)], None),
    ({}, [GOOD], '[]'), ({}, [GOOD], '{}'), ({}, [GOOD], '[' * 100_000), ({}, [GOOD], 'x')])
def test_a_broken_run_is_one_line(tmp_path, options, lines, config):
    folder = write_run(tmp_path / 'run', lines, **options)
    if config:
        (folder / 'config.json').write_text(config)
    with pytest.raises(UserError, match='a file is broken|is not a log of train.py'):
        animate.main([str(folder)])


def test_the_gif_shows_training_and_then_positions(tmp_path, monkeypatch):
    image = pytest.importorskip('PIL.Image')
    run = animate.read_run(write_run(tmp_path / 'run'))
    frames = animate.moments(run)
    assert frames[:3] == [(0, 10), (1, 10), (2, 10)]
    assert frames[3:] == [(2, 10 + more) for more in range(1, 21)]
    assert len(animate.moments(run | dict(iterations=list(range(500))))) == 45
    monkeypatch.setattr(animate, 'moments', lambda run: frames[:4])
    animate.main([str(tmp_path / 'run'), '--gif', '--still'])
    with image.open(tmp_path / 'run' / 'animation.gif') as gif:
        assert gif.n_frames == 4 and gif.size == (580, 330)
    assert (tmp_path / 'run' / 'animation.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.parametrize('validation, m', [(0, 10), (2, 13)])
def test_a_hand_is_at_m_omega_and_is_thick_where_it_is_locked(tmp_path, validation, m):
    assert animate.STYLES['near'] not in (animate.STYLES['locked'], animate.STYLES['hand'])
    figures = pytest.importorskip('matplotlib.figure')
    run = animate.read_run(write_run(tmp_path / 'run'))
    figure = figures.Figure()
    animate.draw(figure, run, validation, m)
    clock = figure.axes[0]
    hands = [line for line in clock.lines if line.get_color() in ('#5B606A', '#BD4D06')]
    pairs = zip(*(run[name][validation][0][0] for name in animate.LEARNED), strict=True)
    for line, (omega, a, phi) in zip(hands, pairs, strict=True):
        x, y = (values[1] for values in line.get_data())
        length = 0.85 * a / 2  # 2 is the largest amplitude of the run
        angle = m * omega + phi
        assert (x, y) == pytest.approx((length * math.sin(angle), length * math.cos(angle)))
    assert [line.get_linewidth() > 3 for line in hands] == [False, validation == 2, False]
    assert {'0', '1', '2'} <= {text.get_text() for text in clock.texts}


def browse(page, fragment, *options):
    """What a headless browser prints on stdout for a page, after a look at its console."""
    flags = ['--headless', '--disable-gpu', '--enable-logging=stderr', '--v=0',
             '--window-size=900,900', f'--user-data-dir={page.parent}/profile']
    if os.geteuid() == 0:
        flags.append('--no-sandbox')
    done = subprocess.run([BROWSER, *flags, *options, f'{page.as_uri()}#{fragment}'], text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    console = [line for line in done.stderr.splitlines() if 'CONSOLE' in line]
    assert done.returncode == 0 and not console, done.stderr
    return done.stdout


@in_a_browser
def test_what_a_browser_shows(tmp_path):
    folder = write_run(tmp_path / 'run', task='bio_rotation:period=10', n_kv_head=2)
    animate.main([str(folder)])
    page = folder / 'animation.html'
    shown = browse(page, 'iteration=39&position=13&head=7', '--dump-dom')  # there is no head 7
    assert '<p id="error" role="alert"></p>' in shown
    assert '<title>bio_rotation:period=10, spectral' in shown and 'layer 0, head 1' in shown
    assert ('Iteration 40: 1 of 3 hands locked (pair 1 on j = 1), validation loss 2e-7 nats. '
            'Token 13.') in shown
    hands = re.findall(r'<line class="(hand|locked)" x1="[^"]*" y1="[^"]*" x2="([^"]*)" '
                       r'y2="([^"]*)"', shown)
    pairs = [('hand', 1.0, 1.0, 0), ('hand', -0.01, 0.5, 0.2),
             ('locked', HARMONIC + 2e-4, 2.0, 0.1)]
    for (kind, x, y), (wanted, omega, a, phi) in zip(hands, pairs, strict=True):
        angle = 13 * omega + phi
        place = 140 * a / 2 * math.sin(angle), -140 * a / 2 * math.cos(angle)
        assert kind == wanted and (float(x), float(y)) == pytest.approx(place, abs=0.01)
    names = re.findall(r'<text class="(name[^"]*)"[^>]*>([^<]*)', shown)
    assert names == [('name', '0'), ('name', '2'), ('name held', '1 (j=1)')]
    assert shown.count('class="tick"') == 10


@in_a_browser
@pytest.mark.parametrize('error, kind', [(9e-4, 'locked'), (4e-3, 'near'), (6e-3, 'hand')])
def test_a_pair_that_holds_for_the_training_length_is_near(tmp_path, error, kind):
    """Half of a tenth of a circle is 0.314: within 64 tokens an error of 0.0049 makes less."""
    line = GOOD | dict(Omega=[[[HARMONIC + error]]])
    animate.main([str(write_run(tmp_path / 'run', [line]))])
    shown = browse(tmp_path / 'run' / 'animation.html', '', '--dump-dom')
    assert re.findall('<line class="(hand|near|locked)"', shown) == [kind]
    assert ('pair 0 near j = 1' in shown) == (kind == 'near')


PROGRAM = """<script>
const press = (key, where = document.body) =>
  where.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
const seen = []
const now = () => $('now').textContent.match(/Iteration (\\d+).*Token (\\d+)/).slice(1).join(' ')
const look = () => seen.push(now())
%s
</script>"""
PLAY = """
const steps = ['Left', 'Left', 'Left', 'Right', 'Up', 'Down', 'Down']
for (const step of steps) { press(`Arrow${step}`); look() }
$('train').click()
press('p')
seen.push($('train').textContent)
setTimeout(() => { press('P'); look(); seen.push($('train').textContent) }, 2100)
setTimeout(() => { look(); document.title = seen.join() }, 3000)
"""
TOUCH = """
const slider = $('position')
slider.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }))
slider.focus()
slider.value = 30
slider.dispatchEvent(new InputEvent('input', { bubbles: true }))
slider.dispatchEvent(new Event('change', { bubbles: true }))
look()
press('ArrowLeft', document.activeElement)
look()
slider.focus()  // by Tab: the arrows are the slider's own, the letters the page's
press('Tab', slider)
press('ArrowLeft', slider)
look()
press('p', slider)
seen.push($('move').textContent)
const own = getComputedStyle(document.body)
seen.push($('on').click() ?? now(), slider.offsetWidth, own.backgroundColor, own.color)
document.title = seen.join(';')
"""


def pressed(tmp_path, program, *options):
    """The title of a copy of the page that has used its own keys."""
    animate.main([str(write_run(tmp_path / 'run'))])
    page = tmp_path / 'run' / 'pressed.html'
    text = (tmp_path / 'run' / 'animation.html').read_text(encoding='utf-8')
    page.write_text(text + PROGRAM % program, encoding='utf-8')
    shown = browse(page, 'iteration=40&position=10', '--dump-dom', *options)
    return re.search('<title>(.*)</title>', shown)[1]


@in_a_browser
def test_its_keys_and_buttons_in_a_browser(tmp_path):
    """After 2 s of play, the training is at its end and the position has moved."""
    title = pressed(tmp_path, PLAY, '--virtual-time-budget=4000').split(',')
    assert title[:7] == ['20 10', '0 10', '0 10', '20 10', '20 11', '20 10', '20 9']
    assert title[7:] == ['pause', '40 17', 'play', '40 17']  # 8 tokens in 2.1 s


@in_a_browser
def test_keys_work_after_a_touch_and_a_phone_and_a_dark_room_are_served(tmp_path):
    seen = pressed(tmp_path, TOUCH).split(';')
    assert seen[:3] == ['40 30', '20 30', '20 30']  # the key after the touch is the page's
    assert seen[3:5] == ['pause', '20 31']
    assert seen[6:] == ['rgb(252, 251, 248)', 'rgb(27, 29, 33)']


@in_a_browser
def test_a_narrow_window_gives_the_sliders_its_width(tmp_path):
    """A frame of 375 pixels, for a window of a browser may not be as narrow."""
    animate.main([str(write_run(tmp_path / 'run'))])
    frame = tmp_path / 'run' / 'frame.html'
    frame.write_text('''<iframe src="animation.html" width="375" height="700"></iframe><script>
        onload = () => {
          const inside = document.querySelector('iframe').contentDocument
          const widths = ['iteration', 'position'].map(id => inside.getElementById(id).offsetWidth)
          document.title = [...widths, inside.documentElement.scrollWidth].join()
        }</script>''')
    shown = browse(frame, '', '--dump-dom', '--allow-file-access-from-files')
    one, two, content = map(int, re.search('<title>(.*)</title>', shown)[1].split(','))
    assert min(one, two) > 300 and content <= 375


@in_a_browser
def test_a_dark_room_has_a_dark_page(tmp_path):
    folder = write_run(tmp_path / 'run')
    animate.main([str(folder)])
    for flags, dark in (([], False), (['--force-dark-mode'], True)):
        picture = folder / 'shown.png'
        browse(folder / 'animation.html', '', f'--screenshot={picture}', *flags)
        image = pytest.importorskip('PIL.Image').open(picture).convert('L')
        assert (image.getpixel((2, 2)) < 60) == dark
