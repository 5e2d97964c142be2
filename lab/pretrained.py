"""
Llama checkpoints of Hugging Face, and their tokenizers. A Mistral without a window is a Llama.

A checkpoint is a folder, or OWNER/NAME on the hub, with config.json, tokenizer.json, and
model.safetensors or the shards that model.safetensors.index.json lists. A key of config.json is
used, or is known to change no logits. Every other key is refused by its name.
"""

import dataclasses
import json
from pathlib import Path

import torch

from lab.frequencies import geometric, read
from lab.hub import find_folder
from lab.llama import LlamaConfig
from model import UserError

MODELS = {  # {model_type: the keys that it must have}
    'llama': [], 'mistral': ['num_key_value_heads', 'sliding_window']}
SHAPE = {  # their key: our option
    'vocab_size': 'vocab_size', 'max_position_embeddings': 'block_size',
    'num_hidden_layers': 'n_layer', 'num_attention_heads': 'n_head',
    'num_key_value_heads': 'n_kv_head', 'hidden_size': 'n_embd',
    'head_dim': 'head_size', 'intermediate_size': 'n_inner'}
DERIVED = ['num_key_value_heads', 'head_dim']  # from the others where they are left out
ONLY = {  # where GPT has one kind of something, the values that mean it, first that of no key
    'architectures': [['LlamaForCausalLM'], ['LLaMAForCausalLM'], ['MistralForCausalLM'], None],
    'hidden_act': ['silu', 'swish'], 'activation': ['swiglu', None], 'is_causal': [True],
    'layer_types': [None], 'attention_bias': [False, None], 'mlp_bias': [False, None],
    'rope_interleaved': [False, None], 'sliding_window': [None],
    'use_sliding_window': [False, None], 'attention_chunk_size': [None],
    'original_max_position_embeddings': [None], 'is_encoder_decoder': [False, None],
    'quantization_config': [None], 'auto_map': [None]}
USED = ('model_type rms_norm_eps tie_word_embeddings '
        'rope_theta rope_scaling rope_parameters partial_rotary_factor')
HARMLESS = {  # keys that change no logits of a trained model, by what they are about
    'where the file comes from':
        '_name_or_path name_or_path _commit_hash transformers_version is_llama_config '
        'transformers.js_config unsloth_fixed unsloth_version',
    'the tokenizer':
        'bos_token_id eos_token_id pad_token_id tokenizer_class model_max_length '
        'max_sequence_length',
    'the first weights, and training':
        'initializer_range attention_dropout',
    'how the same products are computed':
        'pretraining_tp chunk_size_feed_forward use_cache torch_dtype dtype '
        '_attn_implementation_autoset',
    'what else is returned':
        'output_attentions output_hidden_states return_dict return_dict_in_generate',
    'another head':
        'id2label label2id num_labels problem_type finetuning_task task_specific_params',
    'how tokens are sampled':
        'do_sample temperature top_k top_p typical_p max_length min_length early_stopping '
        'num_beams num_return_sequences length_penalty repetition_penalty '
        'no_repeat_ngram_size bad_words_ids'}
KNOWN = {*SHAPE, *ONLY, *USED.split(), *' '.join(HARMLESS.values()).split()}
ROPE = {  # rope_type: the name in our option `rope`, the numbers it needs, and those it may have
    'default': ('geometric', [], []),
    'linear': ('pi', ['factor'], []),
    'yarn': ('yarn', ['factor'], ['original_max_position_embeddings', 'attention_factor',
                                  'beta_fast', 'beta_slow']),
    'llama3': ('llama3', ['factor', 'low_freq_factor', 'high_freq_factor'],
               ['original_max_position_embeddings'])}
ROPE_ONLY = {'partial_rotary_factor': 1, 'truncate': True}
NUMBERS = {  # their name: ours
    'factor': 'factor', 'original_max_position_embeddings': 'original', 'attention_factor': 'gain',
    'beta_fast': 'fast', 'beta_slow': 'slow', 'low_freq_factor': 'low', 'high_freq_factor': 'high'}
FLOATS = ['F64', 'F32', 'F16', 'BF16']  # in the words of safetensors; other types are quantized


def load_pretrained(name_or_path):
    """
    A checkpoint as train.py would save it: model_args, and the weights in float32 under our
    names. `name_or_path` is a folder, or OWNER/NAME on the hub, which is downloaded once. At most
    one tensor at a time is in memory twice.

    Raises UserError for a file or a package that is missing, for what GPT cannot represent, and
    for tensors that are not those that config.json asks for.
    """
    try:
        from safetensors import safe_open
    except ImportError:
        raise UserError(f'{name_or_path}: to read it, pip install safetensors') from None
    folder = find_folder(name_or_path)
    config = read_config(folder / 'config.json')
    tensors = list_tensors(folder)
    if config.n_layer > len(tensors):  # before a table of all layers is made
        raise UserError(f'{folder}: config.json asks for num_hidden_layers={config.n_layer}, '
                        f'and there are {len(tensors)} tensors')
    table = tensor_names(config)
    expected = {name: shape for parts in table.values() for name, shape in parts.items()}
    check_shapes(folder, tensors, expected)

    def read_tensor(name):  # opened anew: what stays open stays in memory
        with safe_open(tensors[name].file, framework='pt') as shard:
            return shard.get_tensor(name)

    for name in sorted(tensors.keys() - expected.keys()):
        check_extra(tensors[name].file, name, read_tensor, config)
    weights = {ours: torch.cat([read_tensor(name) for name in parts]).float()
               for ours, parts in table.items()}
    if config.tie_embeddings:
        weights['lm_head.weight'] = weights['embedding.weight']
    return dict(model_args=dataclasses.asdict(config), model=weights)


@dataclasses.dataclass
class Tensor:
    file: Path
    shape: tuple
    dtype: str


def list_tensors(folder):
    """{name: Tensor} of the files in a folder. Raises UserError for a file that is broken."""
    from safetensors import SafetensorError, safe_open
    tensors = {}
    for file in weight_files(folder):
        if not file.is_file():
            raise UserError(f'{file} is missing, and model.safetensors.index.json lists it')
        try:
            with safe_open(file, framework='pt') as shard:
                for name in shard.keys():
                    if name in tensors:
                        raise UserError(f'{file}: {name} is in {tensors[name].file.name} too')
                    entry = shard.get_slice(name)
                    tensors[name] = Tensor(file, tuple(entry.get_shape()), entry.get_dtype())
        except SafetensorError as error:  # its header says how long it should be
            raise UserError(f'{file} is broken, or cut short: {error}') from None
    return tensors


def weight_files(folder):
    """The safetensors files in a folder: the one, or the shards that the index lists."""
    one, index = folder / 'model.safetensors', folder / 'model.safetensors.index.json'
    if one.is_file():
        return [one]
    if not index.is_file():
        raise UserError(f'{folder} has no weights: neither {one.name} nor {index.name}. Pickles '
                        '(pytorch_model.bin) are not read, for they can run code; transformers '
                        'converts them: from_pretrained(OLD), then save_pretrained(NEW)')
    shards = read_json(index).get('weight_map')
    if not isinstance(shards, dict) or not all(type(name) is str for name in shards.values()):
        raise UserError(f'{index} has no weight_map of names to files')
    names = sorted(set(shards.values()))
    for name in names:
        if Path(name).name != name:  # a stranger's index opens no file elsewhere
            raise UserError(f'{index}: {name!r:.100} is no file name')
    return [folder / name for name in names]


def tensor_names(config):
    """{our tensor: {theirs: its shape}}. Ours has the rows of several of theirs, in this order."""
    C, inner = config.n_embd, config.n_inner
    q, kv = config.n_head * config.head_size, config.n_kv_head * config.head_size
    layer = {
        'norm_1': {'input_layernorm': (C,)},
        'attention.qkv': {'self_attn.q_proj': (q, C), 'self_attn.k_proj': (kv, C),
                          'self_attn.v_proj': (kv, C)},
        'attention.proj': {'self_attn.o_proj': (C, q)},
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
            parts = {f'model.layers.{i}.{name}.weight': shape for name, shape in parts.items()}
            table[f'blocks.{i}.{ours}.weight'] = parts
    return table


def check_shapes(folder, tensors, expected):
    """Raise UserError for a tensor that is missing, quantized, or of another shape."""
    for name, shape in expected.items():
        if name not in tensors:
            raise UserError(f'{folder}: {name} is missing, and config.json asks for it')
        if tensors[name].shape != shape:
            raise UserError(f'{tensors[name].file}: {name} is {tensors[name].shape}, and should '
                            f'be {shape} by config.json')
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise UserError(f'{tensor.file}: {name} is {tensor.dtype}: must be one of '
                            f'{", ".join(FLOATS)}')


def check_extra(file, name, read_tensor, config):
    """Raise UserError unless the tensor says once more what the model has already."""
    if name == 'lm_head.weight':
        twin, rtol = read_tensor('model.embed_tokens.weight'), 0.0
        source = 'model.embed_tokens.weight, to which config.json ties it'
    elif name.endswith('.rotary_emb.inv_freq'):
        twin, rtol = geometric(config), 1e-2  # it may have 16 bits
        source = 'theta, which config.json defines'
    else:
        raise UserError(f'{file}: {name} has no place in the model of config.json')
    tensor = read_tensor(name).float()
    same = tensor.shape == twin.shape
    if not same or not torch.allclose(tensor, twin.float(), rtol, atol=1e-4 * rtol):
        raise UserError(f'{file}: {name} is not {source}')


def read_json(path):
    """The object that a JSON file holds, as a dict. Raises UserError for any other file."""
    try:
        content = json.loads(path.read_text())
        repr(content)  # an error if it is too deep to show
    except FileNotFoundError:
        raise UserError(f'{path} is missing: not a checkpoint of Hugging Face in safetensors'
                        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{path} is broken: {error}') from None
    if not isinstance(content, dict):
        raise UserError(f'{path} holds a {type(content).__name__}, not names and values')
    return content


def require(ok, name, value, allowed):
    if not ok:
        raise UserError(f'{name}={value!r:.100}: must be {allowed}')


def read_config(path):
    """The LlamaConfig of a config.json. Raises UserError for what GPT does not have, by name."""
    file = read_json(path)
    config = {name: value for name, value in file.items() if value is not None}
    try:
        check_keys(file)
        for name in SHAPE:
            value = config.get(name, 0 if name in DERIVED else None)
            least = 0 if name in DERIVED else 1
            whole = type(value) is int and least <= value < 2**24
            require(whole, name, value, 'a whole number of at least 1, and below 2**24')
        tied = config.get('tie_word_embeddings', False)
        require(type(tied) is bool, 'tie_word_embeddings', tied, 'true or false')
        eps = config.get('rms_norm_eps')
        require(positive(eps), 'rms_norm_eps', eps, 'a positive number')
        base, rope = read_rope(config)
        shape = {ours: config.get(name, 0) for name, ours in SHAPE.items()}
        llama = LlamaConfig(**shape, norm_eps=float(eps), rope_base=base, rope=rope,
                            tie_embeddings=tied)
        llama.require('head_size', llama.head_size % 2 == 0, 'even, for pairs')
        return llama
    except UserError as error:
        raise UserError(f'{path}: {error}') from None


def check_keys(file):
    """Raise UserError unless each key of config.json is known, and means what GPT does."""
    model = file.get('model_type')
    allowed = ' or '.join(map(repr, MODELS))
    require(model in list(MODELS), 'model_type', model, allowed)
    for name in MODELS[model]:
        require(name in file, name, None, f'written out in a {model}, even as null')
    for name, value in file.items():
        require(name in KNOWN, name, value, 'left out, for what it does is not known here')
    for name, values in ONLY.items():
        value = file.get(name, values[0])
        require(value in values, name, value, f'{values[0]!r}, or left out')


def read_rope(config):
    """Our rope_base and `rope` for the keys of config.json. Raises UserError for another RoPE."""
    keys = ['rope_theta', 'partial_rotary_factor']
    rope = {name: config[name] for name in keys if name in config}

    # transformers 4 and 5 have two names for the same dict
    places = ['rope_scaling', 'rope_parameters']
    for name in places:
        value = config.get(name, {})
        require(type(value) is dict, name, value, 'names and numbers')
    nested = [config[name] for name in places if config.get(name)] or [{}]
    same = nested[0] == nested[-1]
    require(same, 'rope_parameters', nested[-1], 'what rope_scaling is, or left out')
    for name, value in nested[0].items():
        name = 'rope_type' if name == 'type' else name
        if value is not None:
            first = rope.setdefault(name, value)
            require(first == value, name, value, f'{first!r}, as it is elsewhere')

    for name, only in ROPE_ONLY.items():
        value = rope.pop(name, only)
        require(value == only, name, value, f'{only!r}, or left out')
    rope_type = rope.pop('rope_type', 'default')
    require(rope_type in list(ROPE), 'rope_type', rope_type, 'one of ' + ', '.join(ROPE))
    grid, needed, optional = ROPE[rope_type]
    numbers = {'rope_theta': 10000.0, **dict.fromkeys(needed), **rope}
    for name, value in numbers.items():
        known = name in ['rope_theta', *needed, *optional]
        require(known, name, value, f'left out with rope_type={rope_type!r}')
        require(positive(value), name, value, 'a positive number')
    base = numbers.pop('rope_theta')
    settings = [f'{NUMBERS[name]}={value!r}' for name, value in numbers.items()]
    rope = f'{grid}:{",".join([*settings, "bits=32"])}'  # theta in float32, as in transformers
    read(rope)  # raises UserError for numbers that make no sense
    return float(base), rope


def positive(value):
    return type(value) in (int, float) and 0 < value < 1e30


class Tokenizer:
    """
    The tokenizer.json of a checkpoint, with those methods of tiktoken.Encoding that a task needs.
    `name_or_path` is as for load_pretrained. What looks like a special token is read as text.

    Raises UserError for a package that is missing, for a file that is missing or broken, and for
    a tokenizer without a token to end a text with.
    """

    def __init__(self, name_or_path):
        try:
            import tokenizers
        except ImportError:
            raise UserError(f'{name_or_path}: to read its tokenizer, pip install tokenizers'
                            ) from None
        folder = find_folder(name_or_path)
        path = folder / 'tokenizer.json'
        if not path.is_file():
            raise UserError(f'{path} is missing: the checkpoint has no tokenizer to read')
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f'{path} is broken: {error}') from None
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        # the offsets of a token include its space
        self.tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        self.n_vocab = 1 + max(vocabulary.values(), default=0)  # there may be gaps
        if self.n_vocab >= 2**24:
            raise UserError(f'{path} has a token {self.n_vocab - 1}: must be below 2**24')
        ends = read_json(folder / 'config.json').get('eos_token_id')
        self.eot_token = ends  # closes each file
        if isinstance(ends, list) and ends:
            self.eot_token = ends[0]
        if type(self.eot_token) is not int or not 0 <= self.eot_token < self.n_vocab:
            raise UserError(f'{folder}/config.json: eos_token_id={ends!r:.100}: must be a token '
                            f'of {path}')

    def encode_ordinary(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_ordinary_batch(self, texts):
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def decode_with_offsets(self, ids):
        """
        The text of ids, and where in it each of them begins, in characters. If the text is read
        as other ids, '' and no places.
        """
        text = self.decode(ids)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if encoding.ids != list(ids):
            return '', []
        return text, [start for start, _ in encoding.offsets]

    def decode_single_token_bytes(self, token):
        """The name of a token, for its bytes are not in tokenizer.json. Raises KeyError."""
        name = self.tokenizer.id_to_token(token)
        if name is None:
            raise KeyError(token)
        return name.encode()
