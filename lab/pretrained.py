"""
Llama checkpoints of Hugging Face: their weights in a GPT, and their tokenizers.

A checkpoint is a folder, or a repository of the hub, with config.json, tokenizer.json, and model.safetensors or the
shards that model.safetensors.index.json lists. What it may have and GPT has not is refused by name, never ignored.
"""

import dataclasses
import json
import re
from pathlib import Path

import torch

from lab.frequencies import geometric, read
from lab.surgery import transplant
from model import GPTConfig

SHAPE = {  # their name: ours
    'vocab_size': 'vocab_size', 'max_position_embeddings': 'block_size', 'num_hidden_layers': 'n_layer',
    'num_attention_heads': 'n_head', 'num_key_value_heads': 'n_kv_head', 'hidden_size': 'n_embd',
    'head_dim': 'head_dim', 'intermediate_size': 'n_inner'}
IMPLIED = ('num_key_value_heads', 'head_dim')  # by the others if left out
ONLY = {  # what GPT has one kind of; left out or null, it is this kind
    'hidden_act': 'silu', 'attention_bias': False, 'mlp_bias': False, 'attention_dropout': 0, 'pretraining_tp': 1,
    'sliding_window': None, 'use_sliding_window': False, 'layer_types': None, 'rope_interleaved': False,
    'original_max_position_embeddings': None, 'quantization_config': None, 'auto_map': None}
ROPE_ONLY = {'partial_rotary_factor': 1, 'truncate': True}
ROPE = {  # rope_type: the family of our option `rope`, the numbers it has, and those it may have
    'default': ('geometric', [], []),
    'linear': ('pi', ['factor'], []),
    'yarn': ('yarn', ['factor'], ['original_max_position_embeddings', 'attention_factor', 'beta_fast', 'beta_slow']),
    'llama3': ('llama3', ['factor', 'low_freq_factor', 'high_freq_factor'], ['original_max_position_embeddings'])}
NUMBERS = {  # their name: ours
    'factor': 'factor', 'original_max_position_embeddings': 'original', 'attention_factor': 'gain',
    'beta_fast': 'fast', 'beta_slow': 'slow', 'low_freq_factor': 'low', 'high_freq_factor': 'high'}
FLOATS = ('F64', 'F32', 'F16', 'BF16')  # the names that safetensors has for them; any other type is quantized


def from_pretrained(name_or_path, attention='rope', **overrides):
    """
    The model of a checkpoint, in float32, with the fields of GPTConfig in `overrides` replaced. The attention
    'spectral' or 'bifocal' is Surgical Integration, see lab/surgery.py. Raises what load_pretrained and transplant do.
    """
    return transplant(load_pretrained(name_or_path), name_or_path, dict(overrides, attention=attention))


def load_pretrained(name_or_path):
    """
    A checkpoint as train.py would save it: model_args, and the weights in float32 under our names. `name_or_path` is a
    folder, or OWNER/NAME on the hub, which is downloaded once. At most one tensor at a time is in memory twice.

    Raises ValueError for what GPT cannot represent, and for tensors that are not those that config.json asks for;
    FileNotFoundError for a file that is missing; ImportError, which says what to install.
    """
    try:
        from safetensors import safe_open
    except ImportError:
        raise ImportError(f'{name_or_path}: to read it, pip install safetensors') from None
    folder = find_folder(name_or_path)
    config = read_config(folder / 'config.json')
    table = tensor_names(config)
    files = find_tensors(folder, {name: shape for parts in table.values() for name, shape in parts.items()})

    def read_tensor(name):
        with safe_open(files[name], framework='pt') as shard:  # opened anew: what stays open stays in memory
            return shard.get_tensor(name)

    expected = {name for parts in table.values() for name in parts}
    for name in sorted(files.keys() - expected):  # a tensor may be saved twice, if it is the same twice
        if name == 'lm_head.weight':
            twin = read_tensor('model.embed_tokens.weight')
            of = 'model.embed_tokens.weight, to which config.json ties it'
        elif name.endswith('.rotary_emb.inv_freq'):
            twin, of = geometric(config), 'theta, which config.json defines'
        else:
            raise ValueError(f'{files[name]}: {name} has no place in the model of config.json')
        tensor = read_tensor(name)
        if tensor.shape != twin.shape or not torch.allclose(tensor.float(), twin.float(), rtol=1e-2, atol=1e-6):
            raise ValueError(f'{files[name]}: {name} is not {of}')
    weights = {ours: torch.cat([read_tensor(name) for name in parts]).float() for ours, parts in table.items()}
    return dict(model_args=dataclasses.asdict(config), model=weights)


def find_tensors(folder, expected):
    """
    {name: the file that it is in} of all tensors in the folder's files. `expected` is {name: shape}. Raises ValueError
    for one that is missing, in two files, of another shape, or quantized; and for a file that is broken.
    """
    from safetensors import SafetensorError, safe_open
    files = {}
    for file in weight_files(folder):
        if not file.is_file():
            raise FileNotFoundError(f'{file} is missing, and model.safetensors.index.json lists it')
        try:
            with safe_open(file, framework='pt') as shard:
                for name in shard.keys():
                    if name in files:
                        raise ValueError(f'{file}: {name} is in {files[name].name} too')
                    files[name], tensor = file, shard.get_slice(name)
                    shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
                    if shape != expected.get(name, shape):
                        raise ValueError(f'{file}: {name} is {shape}, and should be {expected[name]} by config.json')
                    if dtype not in FLOATS:
                        raise ValueError(f'{file}: {name} is {dtype}: must be one of {", ".join(FLOATS)}')
        except SafetensorError as error:  # its header says how long it should be
            raise ValueError(f'{file} is broken, or cut short: {error}') from None
    for name in expected:
        if name not in files:
            raise ValueError(f'{folder}: {name} is missing, and config.json asks for it')
    return files


def tensor_names(config):
    """{our tensor: {theirs: shape}}. Where ours is several of theirs, it has the outputs of one behind the other's."""
    C, inner = config.n_embd, config.inner
    nh_hs, nkv_hs = config.n_head * config.head_size, config.nkv * config.head_size
    layer = {
        'norm_1': {'input_layernorm': (C,)},
        'attention.qkv': {'self_attn.q_proj': (nh_hs, C), 'self_attn.k_proj': (nkv_hs, C),
                          'self_attn.v_proj': (nkv_hs, C)},
        'attention.proj': {'self_attn.o_proj': (C, nh_hs)},
        'norm_2': {'post_attention_layernorm': (C,)},
        'mlp.gate': {'mlp.gate_proj': (inner, C)},
        'mlp.up': {'mlp.up_proj': (inner, C)},
        'mlp.down': {'mlp.down_proj': (C, inner)}}
    table = {'embedding.weight': {'model.embed_tokens.weight': (config.vocab_size, C)},
             'norm.weight': {'model.norm.weight': (C,)}}
    if not config.tie_embeddings:
        table['lm_head.weight'] = {'lm_head.weight': (config.vocab_size, C)}
    for i in range(config.n_layer):
        for ours, parts in layer.items():
            table[f'blocks.{i}.{ours}.weight'] = {
                f'model.layers.{i}.{theirs}.weight': shape for theirs, shape in parts.items()}
    return table


def read_config(path):
    """The GPTConfig that a config.json describes. Raises ValueError for what GPT has not, with its name there."""
    config = {name: value for name, value in read_json(path).items() if value is not None}

    def demand(ok, name, value, allowed):
        if not ok:
            raise ValueError(f'{path}: {name}={value!r}: must be {allowed}')

    demand(config.get('model_type') == 'llama', 'model_type', config.get('model_type'), "'llama'")
    for name, only in ONLY.items():
        demand(config.get(name, only) == only, name, config.get(name), f'{only!r}, or left out')
    for name in SHAPE:
        value = config.get(name, 0 if name in IMPLIED else None)
        whole = type(value) is int and (value > 0 or name in IMPLIED)
        demand(whole, name, value, 'a whole number of at least 1')
    rope = {name: config[name] for name in ('rope_theta', 'partial_rotary_factor') if name in config}
    for place in ('rope_scaling', 'rope_parameters'):  # the names of transformers 4 and 5
        demand(type(config.get(place, {})) is dict, place, config.get(place), 'names and numbers')
        for name, value in config.get(place, {}).items():
            name = 'rope_type' if name == 'type' else name
            same = value is None or rope.setdefault(name, value) == value
            demand(same, name, value, f'{rope.get(name)!r}, which it is elsewhere')
    for name, only in ROPE_ONLY.items():
        value = rope.pop(name, only)
        demand(value == only, name, value, f'{only!r}, or left out')
    kind = rope.pop('rope_type', 'default')
    demand(kind in ROPE, 'rope_type', kind, 'one of ' + ', '.join(ROPE))
    family, needed, optional = ROPE[kind]
    numbers = {'rope_theta': 10000.0, **dict.fromkeys(needed), **rope}
    for name, value in numbers.items():
        demand(name in ['rope_theta', *needed, *optional], name, value, f'left out with rope_type={kind!r}')
        demand(type(value) in (int, float) and value > 0, name, value, 'a positive number')
    eps = config.get('rms_norm_eps')
    demand(type(eps) in (int, float) and eps > 0, 'rms_norm_eps', eps, 'a positive number')
    base = numbers.pop('rope_theta')
    parameters = ','.join(f'{NUMBERS[name]}={value!r}' for name, value in numbers.items())
    rope_option = f'{family}:{parameters}' if parameters else family
    try:
        read(rope_option)
        return GPTConfig(**{ours: config.get(name, 0) for name, ours in SHAPE.items()}, norm_eps=eps, rope_base=base,
                         rope=rope_option, tie_embeddings=config.get('tie_word_embeddings', False))
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None


def read_json(path):
    """The object that a JSON file holds, as a dict."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f'{path} is missing: not a checkpoint of Hugging Face in safetensors') from None
    except ValueError as error:
        raise ValueError(f'{path} is broken: {error}') from None
    if not isinstance(content, dict):
        raise ValueError(f'{path} holds a {type(content).__name__} instead of names and values')
    return content


def weight_files(folder):
    """The safetensors files in `folder`: the one, or the shards that the index lists."""
    one, index = folder / 'model.safetensors', folder / 'model.safetensors.index.json'
    if one.is_file():
        return [one]
    if not index.is_file():
        raise FileNotFoundError(f'{folder} has no weights: neither {one.name} nor {index.name}')
    shards = read_json(index).get('weight_map')
    if not isinstance(shards, dict):
        raise ValueError(f'{index} has no weight_map')
    return [folder / name for name in sorted(set(shards.values()))]


class Tokenizer:
    """
    The tokenizer.json of a checkpoint, with those methods of tiktoken.Encoding that a task needs. `name_or_path` as for
    load_pretrained. Text is text: what looks like a special token is spelled out.

    Raises ImportError, which says what to install; FileNotFoundError; ValueError for a file that is broken, or has no
    token to end a text with.
    """

    def __init__(self, name_or_path):
        try:
            import tokenizers
        except ImportError:
            raise ImportError(f'{name_or_path}: to read its tokenizer, pip install tokenizers') from None
        folder = find_folder(name_or_path)
        path = folder / 'tokenizer.json'
        if not path.is_file():
            raise FileNotFoundError(f'{path} is missing: the checkpoint has no tokenizer that can be read')
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ValueError(f'{path} is broken: {error}') from None
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)  # a token has its space
        self.n_vocab = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())  # there may be gaps
        ends = read_json(folder / 'config.json').get('eos_token_id')
        self.eot_token = ends[0] if isinstance(ends, list) and ends else ends  # behind each file
        if type(self.eot_token) is not int or not 0 <= self.eot_token < self.n_vocab:
            raise ValueError(f'{folder}/config.json: eos_token_id={ends!r}: must be a token of {path}')

    def encode_ordinary(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_ordinary_batch(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def decode_with_offsets(self, ids):
        """
        The text of ids, and where in it each of them begins, in characters. If the text is not read as these ids, ''
        and no places.
        """
        text = self.decode(ids)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return (text, [start for start, _ in encoding.offsets]) if encoding.ids == list(ids) else ('', [])

    def decode_single_token_bytes(self, token):
        """The name of a token in the vocabulary. A tokenizer.json does not say what bytes it is. Raises KeyError."""
        name = self.tokenizer.id_to_token(token)
        if name is None:
            raise KeyError(token)
        return name.encode()


def find_folder(name_or_path):
    """The folder of that name, or else a snapshot of the repository of that name on the hub."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    if not re.fullmatch(r'[\w.-]+/[\w.-]+', str(name_or_path)):
        raise FileNotFoundError(f'{name_or_path}: there is no such folder, and names on the hub are OWNER/NAME')
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ImportError(f'{name_or_path}: no such folder; to look on the hub, pip install huggingface_hub') from None
    try:
        return Path(snapshot_download(str(name_or_path), allow_patterns=['*.json', '*.safetensors']))
    except (OSError, ValueError) as error:  # no such name, not for us, no network
        reason = str(error).partition('\n')[0]
        raise ValueError(f'{name_or_path}: there is no such folder, and the hub gave none: {reason}') from error
