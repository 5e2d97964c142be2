"""Tables and figures on TAPA's claims and on long context: text, passkey, and what reads on beyond training."""

import math
import statistics

from lab import trial
from lab.compare import against, paired, print_table, same_seeds, spread
from lab.figures import color, plot_heat, plot_perplexity
from lab.results import at_lengths, columns_of, group

# studies of long context
STAGES = {'long': 'as trained, AdamW', 'long_muon': 'as trained, Muon', 'tuned': 'fine-tuned at 4x, AdamW'}


def long_arms(part, task):
    """{arm: [rows by seed]} of a task of long context; RoPE's extensions are overrides of it, or runs of their own."""
    found = group(part, task, trial.arms(task))
    for extension, option in trial.EXTENSIONS.items():
        if part == 'long':
            runs = group(part, task, ('rope',), override=option).get('rope')
        else:
            runs = group(part, task, (f'rope-{extension}',)).get(f'rope-{extension}')
        if runs:
            found[f'rope-{extension}'] = runs
    return found


def plain_arms(part, task):
    """`long_arms` without RoPE's extensions."""
    return {name: runs for name, runs in long_arms(part, task).items() if '-' not in name}


def perplexity(row, length, way='sliding'):
    """Of a run on text, with a context of `length` tokens."""
    return row[f'perplexity@{length} {way}']


def log_perplexity(length, way='sliding'):
    """The function from a row to the natural logarithm of that perplexity."""
    return lambda row: math.log(perplexity(row, length, way))


# ----------------------------------------------------------------------------------------------------------------------
# The claims


def verdict(mean, half, better='reproduced', worse='not reproduced'):
    """Of a claim that a difference is negative, by its 95 % interval mean ± half."""
    return better if mean + half < 0 else worse if mean - half > 0 else 'not settled'


def perplexities(rows, measure):
    """'mean ± sd' of e to a measure, for a table."""
    return spread([math.exp(measure(row)) for row in rows], digits=2)


def mean_bias(row):
    """The size of the distance bias over its sd, mean of the layers."""
    layers = [f'bias layer {layer} trained' for layer in range(row['n_layer'])]
    return statistics.mean(abs(row[f'{layer} mean']) / row[f'{layer} sd'] for layer in layers)


def claim(sentence, here, ours, theirs, measure, other=None, show=perplexities, **verdicts):
    """
    A row on the claim that a measure of the rows `ours` is lower than the same, or the measure `other`, of `theirs`.

    A list of one row, or of none with fewer than two seeds.
    """
    other = other or measure
    both = same_seeds(ours, theirs)
    if len(both[0]) < 2:
        return []
    mean, half, p = paired(map(measure, both[0]), map(other, both[1]))
    return [[sentence, here, len(both[0]), f'{show(ours, measure)} against {show(theirs, other)}',
             f'{mean:+.3f} ± {half:.3f} (p {p:.2g})', verdict(mean, half, **verdicts)]]


def tapa():
    """The sentences of TAPA's paper beside the models of text; L is the training length."""
    long, tuned = long_arms('long', 'text'), long_arms('tuned', 'text')
    linear = group('phase', 'text-tapa', ('linear',))
    if not {'rope', 'tapa'} <= set(long):
        return
    L = long['rope'][0]['block_size']
    at = lambda multiple: log_perplexity(multiple * L)
    rows = []
    for label, multiple, sentence in (
            ('L', 1, 'as good as RoPE at the training length: 12.22 against 12.21'),
            ('4L', 4, 'beyond it 123 against 16367, at 4 times the length')):
        for optimizer, arms in (('Muon', long_arms('long_muon', 'text')), ('AdamW', long)):
            rows += claim(sentence, f'tapa against rope at {label}, {optimizer}', arms.get('tapa', ()),
                          arms.get('rope'), at(multiple))
    if {'rope', 'tapa'} <= set(tuned):
        ropes = [name for name in tuned if name.startswith('rope')]
        best = min(ropes, key=lambda name: statistics.mean(map(at(8), tuned[name])))
        rows += claim('fine-tuned at a longer L, 11.75 at twice that, against 1963 of the best RoPE, YaRN',
                      f'tuned at 4L: tapa at 8L against {best}, the best RoPE there', tuned['tapa'], tuned[best], at(8))
        rows += claim('and no worse there than at the length it was tuned at: 11.75 against 11.74',
                      'tuned at 4L: tapa at 8L against itself at 4L', tuned['tapa'], tuned['tapa'], at(8), at(4),
                      better='reproduced', worse='worse')
    if linear:
        rows += claim('the quadratic phase is the better: 11.74 against 13.13 of the linear, fine-tuned',
                      'as trained, at L', long['tapa'], linear['linear'], at(1))
    rows += claim('near keys score higher than far ones by 4.1 ± 0.85 with RoPE, by 0.03 ± 3.3 with TAPA',
                  'size of the mean over the sd, mean of the layers', long['tapa'], long['rope'], mean_bias,
                  show=lambda rows, measure: spread(map(measure, rows), digits=2),
                  better='in direction; the paper has 4.8 with RoPE')
    print_table(['the paper', 'here', 'n', 'perplexity, or bias', 'difference, of perplexities in ln', 'verdict'], rows)


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity by context


def context():
    """Perplexity of the text by the length of the context, as trained and fine-tuned."""
    stages = {stage: long_arms(part, 'text') for part, stage in STAGES.items()}
    for way in ('sliding', 'same targets'):
        rows, lengths = [], []
        for stage, arms in stages.items():
            for name, runs in arms.items():
                lengths = list(at_lengths(runs[0], 'perplexity', f' {way}'))
                cells = [spread([perplexity(run, length, way) for run in runs], digits=2) for length in lengths]
                rows.append([stage, name, len(runs), *cells,
                             against(runs, arms.get('rope'), log_perplexity(max(lengths), way), 3)])
        if rows:
            print_table(['stage', 'arm', 'n', *(f'{length} tokens' for length in lengths),
                         f'ln of the last, against rope ({way})'], rows)
            print()


def draw_context(plt):
    """Perplexity by the length of the context, as trained and fine-tuned."""
    return draw_contexts(plt, {stage: long_arms(part, 'text') for part, stage in STAGES.items()})


def draw_contexts(plt, groups):
    """A panel for each group, {title: {arm: rows}}: perplexity by the length of the context. None without groups."""
    groups = {title: arms for title, arms in groups.items() if arms}
    if not groups:
        return None
    figure, panels = plt.subplots(1, len(groups), figsize=(1.5 + 4.4 * len(groups), 3.8), sharey=True, squeeze=False)
    fullest = max(groups, key=lambda title: len(groups[title]))
    one_legend = all(set(arms) <= set(groups[fullest]) for arms in groups.values())
    for axes, (title, arms) in zip(panels[0], groups.items()):
        for name, runs in arms.items():
            plot_perplexity(axes, runs, 'sliding', color(name), name)
        axes.set(title=title)
        if not one_legend:
            axes.legend(fontsize=8)
        elif title == fullest:
            figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc='outside right center')
    return figure


def by_multiple(label, groups, baseline='rope'):
    """
    A table of perplexities (sliding) at and beyond the training length.

    `groups` is {title: {arm: rows}}, with `label` above the titles; differences are to the baseline of the same group.
    """
    rows = []
    for title, arms in groups.items():
        for name, runs in arms.items():
            L = runs[0]['block_size']
            cells = [spread([perplexity(run, m * L) for run in runs], digits=2) for m in (1, 2, 4, 8)]
            differences = [against(runs, arms.get(baseline), log_perplexity(m * L), 3) for m in (1, 4)]
            rows.append([title, name, len(runs), *cells, *differences])
    if rows:
        print_table([label, 'arm', 'n', *(f'{m}x' for m in (1, 2, 4, 8)),
                     *(f'ln at {m}x, against {baseline}' for m in (1, 4))], rows)


def english_groups():
    """The arms on tinyshakespeare."""
    return {'tinyshakespeare': group('english', 'text', trial.arms('text'))}


def english():
    """Perplexity of tinyshakespeare, a byte, at and beyond the training length."""
    by_multiple('text', english_groups())


def base_groups():
    """RoPE and Spectral, side by side from either base."""
    runs = group('long', 'text', ('rope', 'spectral')) | group('base', 'text', ('rope-base10000', 'spectral-base100'))
    bases = {'base 100': {'rope': 'rope', 'spectral': 'spectral-base100'},
             'base 10000': {'rope': 'rope-base10000', 'spectral': 'spectral'}}
    return {title: {arm: runs[name] for arm, name in names.items() if name in runs} for title, names in bases.items()}


def base():
    """RoPE and Spectral from each other's base, on text."""
    by_multiple('base', base_groups())


LEARNED = {'A and Phi': 'A-Phi', 'Omega': 'omega', 'Omega and A': 'omega-A', 'Omega and Phi': 'omega-Phi'}


def learned_runs():
    """{arm: rows} of RoPE at four bases, of Spectral with some of its parts, and of Spectral."""
    named = {f'rope, base {value}': ('base', f'rope-base{value}') for value in (10000, 40, 10)}
    named['rope, base 100'] = ('long', 'rope')
    named |= {name: ('ablation', arm) for name, arm in LEARNED.items()}
    named['spectral'] = ('long', 'spectral')
    found = {name: group(part, 'text', (arm,)).get(arm) for name, (part, arm) in named.items()}
    return {name: runs for name, runs in found.items() if runs}


def learned_groups():
    """Those that learn a part, and those with fixed frequencies; Spectral in both."""
    runs = learned_runs()
    groups = {'learned': ('rope, base 10000', *LEARNED, 'spectral'),
              'fixed': (*(f'rope, base {value}' for value in (10000, 100, 40, 10)), 'spectral')}
    return {title: {name: runs[name] for name in names if name in runs} for title, names in groups.items()}


def learned():
    """What of Spectral reads text beyond the training length: its parts learned alone, and RoPE without slow pairs."""
    by_multiple('frequencies', learned_groups(), 'spectral')
    rows = [[name, *(spread([run[f'slow_pairs_{end}'] for run in runs], 100) for end in ('start', 'end'))]
            for name, runs in learned_runs().items()]
    if rows:
        print()
        print_table(['arm', 'pairs that do not turn once within the training length: at the start (%)',
                     'at the end (%)'], rows)


def budget_groups():
    """The arms on text after 1000 updates and after 4000."""
    names, base40 = ('nope', 'rope', 'tapa'), ('rope-base40',)
    return {'1000 updates': group('long', 'text', names) | group('base', 'text', base40),
            '4000 updates': group('budget', 'text', names + base40)}


def budget():
    """The arms on text after 1000 updates and after 4000."""
    by_multiple('updates', budget_groups())


def phase_groups():
    """TAPA with another phase, alpha or theta, each beside the one that the configs have."""
    runs = group('phase', 'text-tapa', [name.removeprefix('text-tapa-') for name, _ in trial.phase()])
    chosen = group('long', 'text', ('tapa',))
    return {changed: chosen | {name: runs[name] for name in runs if name.startswith(start)}
            for changed, start in (('phase', 'linear'), ('alpha', 'alpha'), ('theta', 'theta'))}


def phase():
    """TAPA's own choices on text: another phase, alpha or theta than quadratic, 0.1 and 0.5."""
    by_multiple('changed', phase_groups(), 'tapa')


# ----------------------------------------------------------------------------------------------------------------------
# The haystack


def haystack():
    """Passkey: all five digits right, by length and filler, as trained and fine-tuned."""
    rows, lengths = [], []
    for part, stage in STAGES.items():
        arms = long_arms(part, 'passkey')
        for name, runs in arms.items():
            for filler, ending in (('random', ''), ('loop', ' loop')):
                lengths = list(at_lengths(runs[0], 'exact', ending))
                last = lambda run: run[f'exact@{lengths[-1]}{ending}']
                rows.append([stage, name, filler, len(runs),
                             *(spread([run[f'exact@{length}{ending}'] for run in runs], 100) for length in lengths),
                             against(runs, arms.get('rope'), last, scale=100)])
    if rows:
        print_table(['stage', 'arm', 'filler', 'n', *(f'{length} tokens (%)' for length in lengths),
                     'the last, against rope (points)'], rows)


def draw_haystack(plt):
    """All five digits right, by length and depth of the key: a row of panels a stage, a column an arm."""
    drawn = {}
    for part, stage in STAGES.items():
        for name, runs in long_arms(part, 'passkey').items():
            drawn.setdefault(name, {})[stage] = [run['curves']['keys'] for run in runs]
    stages = [stage for stage in STAGES.values() if any(stage in found for found in drawn.values())]
    if not stages:
        return None
    figure, panels = plt.subplots(len(stages), len(drawn), figsize=(1.35 * len(drawn) + 1.2, 2.1 * len(stages)),
                                  squeeze=False, sharex=True, sharey=True)
    for row, stage in zip(panels, stages):
        for axes, (name, found) in zip(row, drawn.items()):
            if stage not in found:
                axes.set_axis_off()
                continue
            image = plot_heat(axes, found[stage], 'depth of the key')
            axes.set(title=name, xlabel='', ylabel='', xticks=(0, 9), xticklabels=('0', '100'))
            axes.tick_params(labelsize=7, labelbottom=True)
        row[0].set_ylabel(f'{stage}\nlength (tokens)', fontsize=8)
    figure.supxlabel('depth of the key (%)', fontsize=9)
    figure.colorbar(image, ax=panels, label='all five digits right (%)')
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# Inside the models of text


def bias():
    """How much more a near key scores than a far one, whatever they are, before and after training."""
    rows = []
    for name, runs in plain_arms('long', 'text').items():
        for layer in range(runs[0]['n_layer']):
            columns = [f'bias layer {layer} {when} {measure}' for when in ('at the start', 'trained')
                       for measure in ('mean', 'sd')]
            rows.append([name, layer, *(spread([run[column] for run in runs], digits=2) for column in columns)])
    if rows:
        print_table(['arm', 'layer', 'mean at the start', 'sd at the start', 'mean, trained', 'sd, trained'], rows)


def draw_bias(plt):
    """The distribution of that difference in every layer, in RoPE and TAPA after training."""
    arms = plain_arms('long', 'text')
    if 'rope' not in arms:
        return None
    layers = len(arms['rope'][0]['curves']['histograms'])
    figure, panels = plt.subplots(1, layers, figsize=(3.2 * layers, 2.8), squeeze=False, sharey=True)
    for layer, axes in enumerate(panels[0]):
        for name in ('rope', 'tapa'):
            for i, run in enumerate(arms.get(name, ())):
                edge, counts = (run['curves']['histograms'][layer][key] for key in ('edge', 'counts'))
                width = 2 * edge / len(counts)
                middles = [-edge + width * (j + 0.5) for j in range(len(counts))]
                densities = [count / sum(counts) / width for count in counts]
                axes.plot(middles, densities, color=color(name), alpha=0.7, label=name if i == 0 else None)
        axes.axvline(0, color='grey', linestyle=':')
        axes.set(title=f'layer {layer}', xlabel='score of a near key less a far one')
    panels[0, 0].set_ylabel('density, every seed')
    panels[0, 0].legend()
    return figure


def assumption():
    """Assumption 2.1 on trained models: do all rotary pairs have the same mean product? Mean and spread, by layer."""
    rows = []
    for name, runs in plain_arms('long', 'text').items():
        if not columns_of(runs[0], 'E A'):
            continue
        for layer in range(runs[0]['n_layer']):
            columns = [f'E {part} layer {layer} {measure}' for part in ('A', 'B') for measure in ('mean', 'sd')]
            means = [statistics.mean(run[column] for run in runs) for column in columns]
            rows.append([name, layer, len(runs), *(f'{mean:.3f}' for mean in means)])
    if rows:
        print_table(['arm', 'layer', 'n', 'mean of E A over pairs', 'sd of E A over pairs', 'mean of E B',
                     'sd of E B'], rows)


def code():
    """Real Python: of the closing brackets, the right kind by distance and depth, at the training length."""
    arms, rows, columns = plain_arms('long', 'text'), [], []
    for name, runs in arms.items():
        start = f'accuracy@{runs[0]["block_size"]} '
        columns = columns or columns_of(runs[0], start)
        right_kind = lambda run: 100 * run[f'{start}closing brackets: right kind']
        cells = [spread([run[column] for run in runs if run[column] is not None], 100) for column in columns]
        rows.append([name, len(runs), *cells, against(runs, arms.get('rope'), right_kind, 2)])
    if rows:
        labels = [column.removeprefix(start) for column in columns]
        print_table(['arm', 'n', *(f'{label} (%)' for label in labels), 'right kind, against rope (points)'], rows)


TABLES = {'tapa': tapa, 'context': context, 'haystack': haystack, 'bias': bias, 'assumption': assumption, 'code': code,
          'english': english, 'base': base, 'learned': learned, 'budget': budget, 'phase': phase}
DRAWINGS = {'context': draw_context, 'haystack': draw_haystack, 'bias': draw_bias,
            'english': lambda plt: draw_contexts(plt, english_groups()),
            'base': lambda plt: draw_contexts(plt, base_groups()),
            'learned': lambda plt: draw_contexts(plt, learned_groups()),
            'budget': lambda plt: draw_contexts(plt, budget_groups()),
            'phase': lambda plt: draw_contexts(plt, phase_groups())}
