"""
A byte-pair encoding of the Python standard library, so that text is read in tokens, not bytes.

    python -m study.bpe                       # 1024 tokens, into out/bpe1024
    python train.py config/text_rope.py --task=text:encoding=hf:out/bpe1024 --out_dir=out/tokens

It is learned from the training split alone. It needs `pip install tokenizers`.
"""

import argparse
import json
from pathlib import Path

from checkpoint import write_files
from configurator import UserError, one_line_errors
from tasks import read_files

END = '<|endoftext|>'  # closes each file


def learn(texts, n_tokens):
    """
    A tokenizers.Tokenizer of at most n_tokens tokens: the end of text is token 0, then all bytes,
    then the pairs that are most frequent in texts. Raises UserError for fewer than 257.
    """
    if n_tokens < 257:
        raise UserError(f'--tokens {n_tokens}: must be 257 or more, 256 bytes and the end of text')
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise UserError('to learn an encoding, pip install tokenizers') from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=n_tokens, special_tokens=[END], initial_alphabet=alphabet,
        show_progress=False))
    return tokenizer


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.strip().split('\n')[0])
    parser.add_argument('--tokens', type=int, default=1024)
    parser.add_argument('--path', default='', help='a text; without it, the standard library')
    parser.add_argument('--out', type=Path, help='a folder; without it, out/bpeTOKENS')
    given = parser.parse_args(arguments)
    folder = given.out or Path(f'out/bpe{given.tokens}')
    if folder.exists():
        raise UserError(f'{folder} exists; delete it, or choose another --out')
    files = read_files(given.path)
    tokenizer = learn(files['train'].values(), given.tokens)
    write_files(folder, {
        'tokenizer.json': tokenizer.to_str().encode(),
        'config.json': json.dumps(dict(eos_token_id=tokenizer.token_to_id(END))).encode()})
    test = list(files['test'].values())
    n_bytes = sum(len(text.encode()) for text in test)
    n_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(test))
    print(f'wrote {folder}: {tokenizer.get_vocab_size()} tokens; '
          f'{n_bytes / n_tokens:.2f} bytes a token in the test split')


if __name__ == '__main__':
    with one_line_errors():
        main()
