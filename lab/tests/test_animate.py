"""The moving picture: its page holds the log, is safe, and a browser shows what the log says."""

import json
import math
import os
import re
import shutil
import subprocess

import pytest

from lab import animate
from lab.tests.conftest import Run
from model import UserError

HARMONIC = 2 * math.pi / 10
EVIL = 'text:path=</script><script>document.title=1</script><!--&amp;'
BROWSERS = (os.environ.get('CHROME', ''), 'chromium', 'chromium-browser', 'google-chrome')
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
in_a_browser = pytest.mark.skipif(not BROWSER, reason='no chromium on PATH, none in CHROME')


def write_run(folder, lines=(), n_head=1, **options):
    """The folder of a run with one head of three pairs; the second locks onto 2 pi / 10."""
    folder.mkdir()
    options = dict(task='bio_rotation', attention='spectral', block_size=64) | options
    config = dict(options=options, task=options['task'], model_args=dict(n_head=n_head))
    (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    log = [(0, 1.9, 0.56, 1.0), (20, 0.3, 0.6, 1.2), (40, 2e-7, HARMONIC + 2e-4, 2.0)]
    log = [dict(iter=it, val_loss=loss, Omega=[[[1.0, omega, -0.01]]], A=[[[1.0, a, 0.5]]],
                Phi=[[[0.0, 0.1, 0.2]]]) for it, loss, omega, a in log]
    text = ''.join(json.dumps(line) + '\n' for line in lines or log)
    (folder / 'log.jsonl').write_text(text, encoding='utf-8')
    return folder


def embedded(text):
    """The data in a page."""
    return json.loads(re.search('<script id="run" type="application/json">(.*?)</script>', text)[1])


@pytest.mark.parametrize('attention, heads', [
    ('spectral', [['head 0', 'head 1']] * 2),
    ('rope,bifocal', [[], ['head 1']])])
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


def test_the_page_needs_nothing_from_elsewhere_and_no_text_breaks_out_of_its_data(tmp_path):
    page = animate.page(animate.read_run(write_run(tmp_path / 'run', task=EVIL)))
    assert not re.search(r'https?:|//\w|@import|\bimport\b|url\(|fetch|XMLHttpRequest', page)
    assert embedded(page)['task'] == EVIL and EVIL.split('=')[1] not in page


def test_the_head_that_locks_most_is_shown_first(tmp_path):
    off, on = [0.6, 0.7], [-HARMONIC, 0.7]
    line = dict(iter=0, val_loss=1.0, Omega=[[off, off], [off, on]], A=[], Phi=[])
    assert animate.read_run(write_run(tmp_path / 'run', [line]))['shown'] == (1, 1)


def test_a_run_that_has_nothing_to_show_is_one_line(tmp_path):
    with pytest.raises(UserError, match='none: it has no config.json'):
        animate.main([str(tmp_path / 'none')])
    cases = [('empty', {}, dict(iter=0, train_loss=1.0), 'log.jsonl has no evaluation: let train'),
             ('rope', dict(attention='rope'), dict(iter=0, val_loss=1.0),
              'attention=rope has no learned frequencies')]
    for name, options, line, message in cases:
        write_run(tmp_path / name, [line], **options)
        with pytest.raises(UserError, match=message):
            animate.main([str(tmp_path / name)])


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
    folder = write_run(tmp_path / 'run', task='bio_rotation:period=10', n_head=2)
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
