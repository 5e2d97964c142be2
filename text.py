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

from model import UserError

SPLITS = ('train', 'validation', 'test')
MANY = 200  # files; with fewer, 5 % of them may be none
SKIPPED = ('.', '__pycache__', 'site-packages', 'dist-packages')
RUN = {'run.lock', 'log.jsonl', 'ckpt.pt', 'best.pt'}  # only a run's folder has one of these


@functools.cache
def read_files(path):
    """
    {split: {name: text}} of the text at `path` ('': the standard library), held once a process.

    Fewer than MANY files are each cut: 90 % for training, 5 for validation, 5 for the test. Of
    more files, each is in one split as a whole, by a hash of its name. So a file keeps its split
    while others come and go. Raises UserError where there is no text.
    """
    texts = read_texts(path)
    splits = {split: {} for split in SPLITS}
    for text, name in texts.items():
        if len(texts) < MANY:
            a, b = len(text) * 90 // 100, len(text) * 95 // 100
            for split, part in zip(SPLITS, [text[:a], text[a:b], text[b:]]):
                splits[split][name] = part
        else:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()
            share = int(digest[:8], 16) / 16**8
            splits[SPLITS[bisect.bisect([0.9, 0.95], share)]][name] = text
    return splits


def read_texts(path):
    """{text: name} of the UTF-8 files at `path`. Of equal texts the first one counts."""
    place = Path(os.path.expanduser(path) or sysconfig.get_path('stdlib'))
    texts, left_out = {}, []
    try:
        files = [place] if place.is_file() else find_files(place, left_out)
        for file in sorted(files, key=Path.as_posix):
            name = file.as_posix().removeprefix(f'{place.as_posix()}/')
            if not path and file.suffix != '.py':
                continue
            text = read_text(file)
            if text is None:
                left_out.append(f'{file} (not UTF-8)')
            elif text.strip():
                texts.setdefault(text, name)
    except OSError as error:
        raise UserError(f'text:path={path}: {error.filename}: {error.strerror} (must be a file or '
                        'a folder)')

    examples = ', '.join(left_out[:3])
    if not texts:
        raise UserError(f'text:path={path} has no text: '
                        f'{examples or "it is empty (hidden files do not count)"}')
    if left_out:
        print(f'left out of the text: {len(left_out)}, such as {examples}')
    return texts


def find_files(folder, left_out):
    """
    The files below a folder, without hidden ones. A link may leave the folder, and a run writes
    into its own: both are left out, and named.
    """
    if RUN & set(os.listdir(folder)):
        left_out.append(f'{folder} (a run)')
        return
    for place in folder.iterdir():
        if place.name.startswith(SKIPPED):
            continue
        if place.is_symlink():
            left_out.append(f'{place} (a link)')
        elif place.is_dir():
            yield from find_files(place, left_out)
        elif place.is_file():
            yield place


def read_text(file):
    """The text of a file without its byte-order mark, each line end '\\n'; None if not UTF-8."""
    try:
        text = file.read_text('utf-8-sig')
    except UnicodeDecodeError:
        return None
    # UTF-16 is full of zero bytes, which may pass for UTF-8
    return None if '\0' in text else text


def read_encoding(name):
    """
    The tiktoken.Encoding of that name; 'bytes' has a token for each byte. Raises UserError for
    an unknown name, and for a vocabulary that cannot be downloaded.
    """
    if name == 'bytes':
        ranks = {bytes([i]): i for i in range(256)}
        return tiktoken.Encoding(name, pat_str=r'[\s\S]', mergeable_ranks=ranks, special_tokens={})
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f'text:encoding={name} is unknown or could not be downloaded ({type(error).__name__}): '
            f'must be bytes, or one of {", ".join(tiktoken.list_encoding_names())}') from error


def encode_texts(texts, encoding):
    """The tokens (n,) of each text, then the end of text (for bytes 0): uint8 or uint32."""
    if encoding.name == 'bytes':
        return [np.frombuffer(text.encode() + b'\0', dtype=np.uint8) for text in texts]
    ids = encoding.encode_ordinary_batch(list(texts))
    return [np.array([*tokens, encoding.eot_token], dtype=np.uint32) for tokens in ids]
