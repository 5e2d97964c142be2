"""
What the task `text` reads: the files of a text, in three splits, and encodings for their tokens.
"""

import bisect
import functools
import hashlib
import os
import sysconfig
from pathlib import Path

import numpy as np
import tiktoken

from configurator import nearest
from model import UserError

SPLITS = ('train', 'validation', 'test')
SKIPPED = ('__pycache__', 'site-packages', 'dist-packages')  # folders


@functools.lru_cache(maxsize=4)
def read_files(path):
    """
    {split: {name: text}} of the UTF-8 text at `path` ('': the standard library), held once a
    process. A single file is cut: its end is for validation and test. In a folder, a hash of its
    name puts each file into one split, nine of ten into train. Raises UserError without any text.
    """
    texts, _ = read_texts(path)
    if os.path.isfile(locate(path)):
        ((text, name),) = texts.items()
        return {split: {name: part} for split, part in zip(SPLITS, cut_text(text))}
    splits = {split: {} for split in SPLITS}
    for text, name in texts.items():
        share = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:4], 'big') / 2**32
        split = SPLITS[bisect.bisect([0.9, 0.95], share)]
        splits[split][name] = text
    return splits


def locate(path):
    """The file or the folder of a text. Raises UserError if there is none."""
    place = os.path.expanduser(path) or sysconfig.get_path('stdlib')
    if not os.path.exists(place):
        raise UserError(f'text:path={path}: {place} does not exist')
    return Path(place)


@functools.lru_cache(maxsize=4)
def read_texts(path):
    """
    {text: name} of the UTF-8 files at `path`, and the names of the others, which are left out.
    Line ends become one sign, a byte-order mark goes, and of equal texts the first one counts.
    """
    place = locate(path)
    folder, names = place.parent, [place.name]
    if os.path.isdir(place):
        folder, names = place, find_names(place, '*' if path else '*.py')
    texts, left_out = {}, []
    for name in names:
        try:
            text = (folder / name).read_text('utf-8-sig')
        except OSError as error:
            raise UserError(f'text:path={path}: {name}: {error.strerror}') from None
        except UnicodeDecodeError:
            left_out.append(name)
            continue
        if text.strip():
            texts.setdefault(text, name)
    others = f'{len(left_out)} of {len(names)} files are not UTF-8'
    if left_out:
        others += f', such as {left_out[0]}'
    if not texts:
        raise UserError(f'text:path={path} has no text: {others}; unpack archives, and convert '
                        'other encodings')
    if left_out:
        print(f'{place}: {others}, and are left out')
    return texts, left_out


def find_names(folder, pattern):
    """The names, sorted, of the files in a folder that are not hidden."""
    names = []
    for file in folder.rglob(pattern):
        parts = file.relative_to(folder).parts
        hidden = [part for part in parts if part[0] == '.' or part in SKIPPED]
        if os.path.isfile(file) and not hidden:
            names.append('/'.join(parts))
    return sorted(names)


def cut_text(text):
    """90, 5 and 5 % of a text, cut at the next line end, or anywhere if none is near."""
    cuts = []
    for percent in (90, 95):
        cut = len(text) * percent // 100
        line_end = text.find('\n', cut, cut + len(text) // 25)
        cuts.append(cut if line_end < 0 else line_end + 1)
    return text[:cuts[0]], text[cuts[0]:cuts[1]], text[cuts[1]:]


def read_encoding(name):
    """
    The tiktoken.Encoding of that name; 'bytes' has a token for each byte. Raises UserError for
    an unknown name, and for a vocabulary that cannot be downloaded.
    """
    if name == 'bytes':
        return make_encoding(name, r'[\s\S]', [bytes([i]) for i in range(256)])
    names = ['bytes', *tiktoken.list_encoding_names()]
    if name not in names:
        raise UserError(f'text:encoding={name} does not exist{nearest(name, names)}')
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        # ValueError: not the bytes that tiktoken expects
        raise UserError(f'text:encoding={name}: tiktoken could not download it '
                        f'({type(error).__name__}); offline, use encoding=bytes, or a '
                        'TIKTOKEN_CACHE_DIR that has it') from error


def make_encoding(name, pattern, symbols):
    """A tiktoken.Encoding whose tokens are these bytes; `pattern` cuts a text into them."""
    ranks = {symbol: i for i, symbol in enumerate(symbols)}
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def list_symbols(encoding):
    """A printable name for each token of an encoding; '' for the ids that it leaves out."""
    symbols = []
    for i in range(encoding.n_vocab):
        try:
            text = encoding.decode_single_token_bytes(i).decode(errors='backslashreplace')
        except KeyError:
            text = ''
        printed = [c if c.isprintable() else f'\\x{ord(c):02x}' for c in text]
        symbols.append(''.join(printed))
    return symbols


def encode_texts(texts, name, encoding):
    """The tokens (n,) of each text, in the smallest unsigned type, with the end of text."""
    if name == 'bytes':
        return [np.frombuffer(text.encode() + b'\0', dtype=np.uint8) for text in texts]
    dtype = np.min_scalar_type(encoding.n_vocab - 1)
    try:
        end = encoding.eot_token
        ids = encoding.encode_ordinary_batch(list(texts))
    except KeyError:
        raise UserError(f'text:encoding={name} has no end of text, to close a file') from None
    except BaseException as error:
        # tiktoken's own, which is no Exception
        if type(error).__name__ != 'PanicException':
            raise
        raise UserError(f'text:encoding={name} cannot encode this text: {error}') from None
    return [np.array([*one, end], dtype=dtype) for one in ids]
