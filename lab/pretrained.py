"""
Llama checkpoints of Hugging Face: their weights in a GPT, and their tokenizers. A Mistral without a window is a Llama.

A checkpoint is a folder, or a repository of the hub, with config.json, tokenizer.json, and model.safetensors or the
shards that model.safetensors.index.json lists. A key of config.json is used, or is known to change no logits. Every
other key is refused by name, and so is what GPT has not.
"""

import dataclasses
import json
import math

import torch

from lab.frequencies import geometric, read
from lab.hub import find_folder
from lab.surgery import transplant
from model import GPTConfig

SHAPE = {  # their name: ours
    'vocab_size': 'vocab_size', 'max_position_embeddings': 'block_size', 'num_hidden_layers': 'n_layer',
    'num_attention_heads': 'n_head', 'num_key_value_heads': 'n_kv_head', 'hidden_size': 'n_embd',
    'head_dim': 'head_dim', 'intermediate_size': 'n_inner'}
IMPLIED = ('num_key_value_heads', 'head_dim')  # by the others if left out
SAID = {'llama': (), 'mistral': ('num_key_value_heads', 'sliding_window')}  # model_type: what it must say, even null
ONLY = {  # what GPT has one kind of: the values that mean this kind, as left out does; None is null
    'architectures': (['LlamaForCausalLM'], ['LLaMAForCausalLM'], ['MistralForCausalLM'], None),
    'hidden_act': ('silu', 'swish'), 'activation': ('swiglu', None), 'is_causal': (True,), 'layer_types': (None,),
    'attention_bias': (False, None), 'mlp_bias': (False, None), 'rope_interleaved': (False, None),
    'sliding_window': (None,), 'use_sliding_window': (False, None), 'attention_chunk_size': (None,),
    'original_max_position_embeddings': (None,), 'is_encoder_decoder': (False, None),
    'quantization_config': (None,), 'auto_map': (None,)}
USED = 'model_type rms_norm_eps tie_word_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor'
HARMLESS = {  # keys that change no logits of a trained model, by what they are about
    'where the file comes from': '_name_or_path name_or_path _commit_hash transformers_version is_llama_config '
                                 'transformers.js_config unsloth_fixed unsloth_version',
    'the tokenizer': 'bos_token_id eos_token_id pad_token_id tokenizer_class model_max_length max_sequence_length',
    'the first weights, and training': 'initializer_range attention_dropout',
    'how the same products are computed': 'pretraining_tp chunk_size_feed_forward use_cache torch_dtype dtype '
                                          '_attn_implementation_autoset',
    'what else is returned': 'output_attentions output_hidden_states return_dict return_dict_in_generate',
    'another head': 'id2label label2id num_labels problem_type finetuning_task task_specific_params',
    'how generate draws': 'do_sample temperature top_k top_p typical_p max_length min_length early_stopping num_beams '
                          'num_return_sequences length_penalty repetition_penalty no_repeat_ngram_size bad_words_ids'}
KNOWN = {*SHAPE, *ONLY, *USED.split(), *' '.join(HARMLESS.values()).split()}
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
            twin, rtol = read_tensor('model.embed_tokens.weight'), 0.0
            of = 'model.embed_tokens.weight, to which config.json ties it'
        elif name.endswith('.rotary_emb.inv_freq'):  # may be saved in 16 bits
            twin, rtol, of = geometric(config), 1e-2, 'theta, which config.json defines'
        else:
            raise ValueError(f'{files[name]}: {name} has no place in the model of config.json')
        tensor = read_tensor(name)
        if tensor.shape != twin.shape or not torch.allclose(tensor.float(), twin.float(), rtol, atol=1e-4 * rtol):
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
    file = read_json(path)
    config = {name: value for name, value in file.items() if value is not None}

    def demand(ok, name, value, allowed):
        if not ok:
            raise ValueError(f'{path}: {name}={value!r}: must be {allowed}')

    model = config.get('model_type')
    demand(model in list(SAID), 'model_type', model, ' or '.join(map(repr, SAID)))
    for name in SAID[model]:
        demand(name in file, name, None, f'written out in a {model}, even as null')
    for name, value in file.items():
        demand(name in KNOWN, name, value, 'left out, for what it does is not known here')
    for name, allowed in ONLY.items():
        demand(file.get(name, allowed[0]) in allowed, name, file.get(name), f'{allowed[0]!r}, or left out')
    for name in SHAPE:
        value = config.get(name, 0 if name in IMPLIED else None)
        whole = type(value) is int and (value > 0 or name in IMPLIED)
        demand(whole, name, value, 'a whole number of at least 1')
    tied = config.get('tie_word_embeddings', False)
    demand(type(tied) is bool, 'tie_word_embeddings', tied, 'true or false')
    rope, nested = {name: config[name] for name in ('rope_theta', 'partial_rotary_factor') if name in config}, []
    for place in ('rope_scaling', 'rope_parameters'):  # the names of transformers 4 and 5
        demand(type(config.get(place, {})) is dict, place, config.get(place), 'names and numbers')
        nested += [config[place]] if config.get(place) else []
    demand(not nested or nested[0] == nested[-1], 'rope_parameters', nested[-1:], 'what rope_scaling is, or left out')
    for name, value in nested[0].items() if nested else ():
        name = 'rope_type' if name == 'type' else name
        same = value is None or rope.setdefault(name, value) == value
        demand(same, name, value, f'{rope.get(name)!r}, which it is elsewhere')
    for name, only in ROPE_ONLY.items():
        value = rope.pop(name, only)
        demand(value == only, name, value, f'{only!r}, or left out')
    kind = rope.pop('rope_type', 'default')
    demand(kind in list(ROPE), 'rope_type', kind, 'one of ' + ', '.join(ROPE))
    family, needed, optional = ROPE[kind]
    numbers = {'rope_theta': 10000.0, **dict.fromkeys(needed), **rope}
    for name, value in numbers.items():
        demand(name in ['rope_theta', *needed, *optional], name, value, f'left out with rope_type={kind!r}')
        demand(type(value) in (int, float) and 0 < value < math.inf, name, value, 'a positive number')
    eps = config.get('rms_norm_eps')
    demand(type(eps) in (int, float) and 0 < eps < math.inf, 'rms_norm_eps', eps, 'a positive number')
    base = numbers.pop('rope_theta')
    parameters = [f'{NUMBERS[name]}={value!r}' for name, value in numbers.items()]
    rope_option = f'{family}:' + ','.join([*parameters, 'bits=32'])  # theta in float32, as transformers computes it
    try:
        read(rope_option)
        return GPTConfig(**{ours: config.get(name, 0) for name, ours in SHAPE.items()}, norm_eps=eps, rope_base=base,
                         rope=rope_option, tie_embeddings=tied)
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
        raise FileNotFoundError(
            f'{folder} has no weights: neither {one.name} nor {index.name}. Pickles (pytorch_model.bin) are not read, '
            'for they can run code: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW) of transformers '
            'converts them')
    shards = read_json(index).get('weight_map')
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f'{index} has no weight_map of names to files')
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
