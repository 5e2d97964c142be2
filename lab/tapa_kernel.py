"""
Token-Aware Phase Attention (arXiv 2509.12635) in Triton kernels: what TAPA in model.py computes,
without its T x T matrices.

Written out, every score is in memory, and with it its amplitude, its phase and its cosine: several
(B, nh, T, T) matrices, kept for the backward pass. One of them, in float32, for 16 heads at
T = 32768, is 64 GiB. FlashAttention-2 (arXiv 2307.08691) avoids them where a score is one dot
product. A score of TAPA takes two, so it needs its own kernel.

Forward. A program keeps ROWS queries of one head and walks over their keys, COLUMNS at a time. A
tile of scores lives in registers only. The softmax is computed on the way: `top` is the greatest
score so far, `total` the sum of exp(score - top), and `acc` the sum of exp(score - top) v. Where a
tile raises top, both sums shrink by exp(old top - new top). In the end, out = acc / total. The
backward pass needs q, k, v, out in float32 (`exact`) and lse = top + log(total). Tiles above the
diagonal are not visited, and only those on it are masked.

Backward. The score s of a query at m and a key at n, where r = |m-n|^alpha, and its derivatives:

    s = a cos(c r phi)        a = q_A.k_A / sqrt(hs_A)    phi = q_P.k_P / sqrt(hs_P)
    ds/da = cos(c r phi)      ds/dphi = -c r a sin(c r phi)         c = tapa_scale

Tile by tile, a, phi and p = exp(s - lse) are computed anew. From here on, dx is the gradient of the
loss in x. Since out_m = sum_n p_mn v_n, that of the output, do, gives

    dv_n = sum_m p_mn do_m      dp_mn = do_m.v_n

and since p is the softmax of s, whose derivative of p_mj in s_mn is p_mj (1[j=n] - p_mn),

    ds_mn = p_mn (dp_mn - sum_j p_mj dp_mj) = p_mn (dp_mn - delta_m)      delta_m = do_m.out_m

The rest is plain attention, once for each product: da = ds cos(c r phi), and
dphi = -ds c r a sin(c r phi), and

    dq_A = sum_n da k_A / sqrt(hs_A)      dk_A = sum_m da q_A / sqrt(hs_A)

and dq_P, dk_P likewise, from dphi. The rounding of out to 16 bits would be an error of ds, which
dphi multiplies by c r a. So delta takes `exact`.

A program keeps ROWS keys, walks over the queries that see them, and sums dk and dv. It adds its
share of dq to a float32 dq in memory, as other programs do. So each tile is computed once, and
takes five products of the head's size. On a GPU the shares come in no fixed order, so the last
bits of dq differ from run to run. Under torch.use_deterministic_algorithms it does not serve.

Since p is computed anew, its rows sum to 1 only as exactly as float32 knows a score. Where scores
are near a thousand, as with q and k from N(0, 16^2), dv can be a few times less exact than that of
TAPA written out, which keeps p.

In the kernels, scores are in bits, s log2(e), for the hardware has exp2. Phases are in half turns:
c r phi = pi h, and cos(pi h) is a polynomial, after whole turns are taken off. All are float32, as
all sums are. Only the operands of products have the dtype of q. In the kernels, r is
(c / pi) |m-n|^alpha / sqrt(hs_P), read from a table. Parts A and P are padded with zeros to powers
of two. The letters are model.py's.
"""

import math
import os
import warnings

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr
except ImportError:  # the kernels can still be read; why_not says that they cannot run
    triton, jit, constexpr = None, lambda kernel: kernel, bool

# kernels then run in numpy, on any device: slow, for tests
interpreted = os.environ.get('TRITON_INTERPRET') == '1'
INTERPRETED = constexpr(interpreted)
HEAD_SIZES = range(16, 129)
# zeros before and after the table of |m-n|^alpha, where tiles stick out: no tile has more rows
MARGIN = 128
# of the sums of dphi: -pi of cos(pi h), and log(2), as a is in bits
PHASE_UNIT = constexpr(-math.pi * math.log(2))


# ---- pieces of the kernels ----------------------------------------------------------------------


@jit
def place(T, heads, BLOCK: constexpr):
    """The block of rows, the batch element and the head of this program."""
    blocks = tl.cdiv(T, BLOCK)
    head = tl.program_id(0) // blocks
    # int64: offsets may pass 2^31
    return tl.program_id(0) % blocks, (head // heads).to(tl.int64), (head % heads).to(tl.int64)


@jit
def span(start, BLOCK: constexpr):
    """start, start + 1, ...: (BLOCK,)."""
    return start + tl.arange(0, BLOCK).to(tl.int64)


@jit
def cells(x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """
    Pointers (rows, BLOCK) to rows of head h of x (B, heads, T, hs), SIZE columns from FIRST on;
    and which of them exist.
    """
    columns = span(0, BLOCK)
    row = x + b * strides[0] + h * strides[1] + rows * strides[2]
    pointers = row[:, None] + (FIRST + columns)[None, :] * strides[3]
    return pointers, (rows < T)[:, None] & (columns < SIZE)[None, :]


@jit
def load(x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """A tile (rows, BLOCK) of x, with zeros where there is nothing."""
    pointers, exist = cells(x, strides, b, h, rows, T, FIRST, SIZE, BLOCK)
    return tl.load(pointers, mask=exist, other=0.0)


@jit
def load_parts(x, strides, b, h, rows, T, SIZE_A: constexpr, SIZE_P: constexpr,
               BLOCK_A: constexpr, BLOCK_P: constexpr):
    """Parts A (rows, BLOCK_A) and P (rows, BLOCK_P) of queries or keys."""
    return (load(x, strides, b, h, rows, T, 0, SIZE_A, BLOCK_A),
            load(x, strides, b, h, rows, T, SIZE_A, SIZE_P, BLOCK_P))


@jit
def store(tile, x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """Write a tile (rows, BLOCK) of x."""
    pointers, exist = cells(x, strides, b, h, rows, T, FIRST, SIZE, BLOCK)
    tl.store(pointers, tile.to(x.dtype.element_ty), mask=exist)


@jit
def add(tile, x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """Add a tile (rows, BLOCK) to x, while other programs add theirs."""
    pointers, exist = cells(x, strides, b, h, rows, T, FIRST, SIZE, BLOCK)
    tl.atomic_add(pointers, tile, mask=exist, sem='relaxed')


@jit
def dot(x, y):
    """The matrix product in float32: tensor cores for 16-bit operands, no TF32 for float32."""
    if INTERPRETED:  # whose own product takes the bits of a bfloat16 for an integer
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision='ieee')


@jit
def look_up(table, later, earlier):
    """
    table[later - earlier], for a tile. On a GPU it is one plain load, in assembly. Triton's own
    would bring the tile to shared memory ahead of its use, in 4 bytes at a time. In this order of
    the sum, equal distances share a load.
    """
    pointers = table + later - earlier
    if INTERPRETED:
        return tl.load(pointers)
    return tl.inline_asm_elementwise('ld.global.nc.f32 $0, [$1];', '=f,l', [pointers],
                                     tl.float32, is_pure=True, pack=1)


@jit
def cosine_and_sine(r, phi):
    """cos and sin of pi r phi, within 1e-6. The compiler leaves out one that is not used."""
    # -r phi to a whole number of turns: float32 has no others there
    pairs = 25165824.0 - tl.fma(r, phi, 25165824.0)
    # in [-1, 1], where these polynomials have the least greatest error
    x = tl.fma(r, phi, pairs)
    # the clamp costs nothing, and holds beyond 2^22 turns, where x may be anything
    y = tl.clamp(x * x, 0.0, 1.0)
    cosine = tl.fma(y, 0.00159414293, -0.0253596803)
    cosine = tl.fma(y, cosine, 0.235030592)
    cosine = tl.fma(y, cosine, -1.33515884)
    cosine = tl.fma(y, cosine, 4.05869494)
    cosine = tl.fma(y, cosine, -4.93480112)
    sine = tl.fma(y, -0.005991827, 0.0804792861)
    sine = tl.fma(y, sine, -0.598282034)
    sine = tl.fma(y, sine, 2.54988075)
    sine = tl.fma(y, sine, -5.16767768)
    sine = tl.fma(y, sine, 3.14159141)
    return tl.fma(y, cosine, 1.0), x * sine


@jit
def derivatives(a, r, phi, dp, lse, delta, seen, dtype: constexpr):
    """
    For a tile: p, and the gradients in a and in phi. `a` is in bits, the mask `seen` None where
    every query sees every key. Constant factors of the gradients are left out.
    """
    cosine, sine = cosine_and_sine(r, phi)
    p = tl.exp2(tl.fma(a, cosine, -lse))
    if seen is not None:
        p = tl.where(seen, p, 0.0)
    ds = p * (dp - delta)
    da = (ds * cosine).to(dtype)
    dphi = (ds * sine * (a * r)).to(dtype)
    return p, da, dphi


# ---- the kernels --------------------------------------------------------------------------------


@jit
def forward_kernel(q, k, v, table, out, exact, lse,
                   q_strides, k_strides, v_strides, out_strides, exact_strides,
                   T, nh, group, scale, SIZE_A: constexpr, SIZE_P: constexpr,
                   BLOCK_A: constexpr, BLOCK_P: constexpr, BLOCK_HS: constexpr,
                   ROWS: constexpr, COLUMNS: constexpr):
    """out and exact (B, nh, T, hs), lse (B, nh, T) of ROWS queries: a walk over their keys."""
    block, b, h = place(T, nh, ROWS)
    m0 = (tl.cdiv(T, ROWS) - 1 - block) * ROWS  # the last queries have the most keys: first
    m = span(m0, ROWS)
    q_A, q_P = load_parts(q, q_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P)
    top = tl.full([ROWS], float('-inf'), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_HS], tl.float32)
    # first the keys before all of the block's queries, then those among them
    for diagonal in tl.static_range(2):
        for n0 in range(m0 * diagonal, tl.minimum(m0 + ROWS * diagonal, T), COLUMNS):
            n = span(n0, COLUMNS)
            k_A, k_P = load_parts(k, k_strides, b, h // group, n, T,
                                  SIZE_A, SIZE_P, BLOCK_A, BLOCK_P)
            r = look_up(table, m[:, None], n[None, :])
            cosine, _ = cosine_and_sine(r, dot(q_P, k_P.T))
            s = dot(q_A, k_A.T) * cosine
            if diagonal:
                s = tl.where(m[:, None] >= n[None, :], s, float('-inf'))
            # finite: the first tile has a key for every query
            new_top = tl.maximum(top, tl.max(s, axis=1) * scale)
            p = tl.exp2(tl.fma(s, scale, -new_top[:, None]))
            shrink = tl.exp2(top - new_top)
            total = tl.fma(total, shrink, tl.sum(p, axis=1))
            v_n = load(v, v_strides, b, h // group, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
            acc = acc * shrink[:, None] + dot(p.to(v_n.dtype), v_n)
            top = new_top
    acc /= total[:, None]
    store(acc, out, out_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    store(acc, exact, exact_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    tl.store(lse + (b * nh + h) * T + m, top + tl.log2(total), mask=m < T)


@jit
def backward_kernel(q, k, v, table, lse, delta, do, dq, dk, dv,
                    q_strides, k_strides, v_strides, do_strides,
                    dq_strides, dk_strides, dv_strides,
                    T, nh, group, scale, SIZE_A: constexpr, SIZE_P: constexpr,
                    BLOCK_A: constexpr, BLOCK_P: constexpr, BLOCK_HS: constexpr,
                    ROWS: constexpr, COLUMNS: constexpr):
    """
    dk and dv (B, nkv, T, hs) of ROWS keys: a walk over the queries that see them, in all heads
    that share the keys. Their share of dq is added to dq (B, nh, T, hs), float32, which waits for
    its constant factors.
    """
    block, b, g = place(T, nh // group, ROWS)
    n0 = block * ROWS  # the first keys are seen by the most queries
    n = span(n0, ROWS)
    k_A, k_P = load_parts(k, k_strides, b, g, n, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P)
    v_n = load(v, v_strides, b, g, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    dk_A = tl.zeros([ROWS, BLOCK_A], tl.float32)
    dk_P = tl.zeros([ROWS, BLOCK_P], tl.float32)
    dv_n = tl.zeros([ROWS, BLOCK_HS], tl.float32)
    for i in range(group):  # the query heads of this key/value head
        h = g * group + i
        row = (b * nh + h) * T
        # the queries among the block's keys, then those after all of them
        for later in tl.static_range(2):
            end = T if later else tl.minimum(n0 + ROWS, T)
            for m0 in range(n0 + ROWS * later, end, COLUMNS):
                m = span(m0, COLUMNS)
                r = look_up(table, m[None, :], n[:, None])  # a row of these tiles is a key
                q_A, q_P = load_parts(q, q_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P)
                # zero beyond T, and so is each gradient
                do_m = load(do, do_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
                lse_m = tl.load(lse + row + m, mask=m < T, other=0.0)[None, :]
                delta_m = tl.load(delta + row + m, mask=m < T, other=0.0)[None, :]
                dp = dot(v_n, do_m.T)
                a = dot(k_A, q_A.T) * scale
                seen = None if later else m[None, :] >= n[:, None]
                p, da, dphi = derivatives(a, r, dot(k_P, q_P.T), dp, lse_m, delta_m,
                                          seen, q_A.dtype)
                dv_n += dot(p.to(do_m.dtype), do_m)
                dk_A += dot(da, q_A)
                dk_P += dot(dphi, q_P)
                add(dot(da.T, k_A), dq, dq_strides, b, h, m, T, 0, SIZE_A, BLOCK_A)
                add(dot(dphi.T, k_P), dq, dq_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_P)
    store(dk_A * SIZE_A**-0.5, dk, dk_strides, b, g, n, T, 0, SIZE_A, BLOCK_A)
    store(dk_P * PHASE_UNIT, dk, dk_strides, b, g, n, T, SIZE_A, SIZE_P, BLOCK_P)
    store(dv_n, dv, dv_strides, b, g, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)


# ---- their launch, and the operators that PyTorch sees ------------------------------------------

# The tiles for 16 bits: {kernel: {greatest padded width of a head: (rows, columns)}}. With more,
# some kB of registers spill, or tiles do not fit the 99 KiB of shared memory of the smaller GPUs.
# One table serves compute capabilities 8.0, 9.0 and 10.0: lab/speed.md counts the machine code.
TILES = {
    forward_kernel: {128: (128, 64), 192: (128, 32)},
    backward_kernel: {128: (64, 32), 192: (64, 16)},
}


def tile(kernel, width, itemsize):
    """
    The tile of a kernel for heads of this padded width. Rows are a multiple of columns, for tiles
    off the diagonal are not masked, and at most MARGIN, where the table ends.
    """
    if interpreted:
        rows, columns = 64, 64
    elif itemsize == 4:  # no tensor cores
        rows, columns = 32, 16
    else:
        rows, columns = next(size for most, size in TILES[kernel].items() if width <= most)
    return dict(ROWS=rows, COLUMNS=columns, num_warps=max(4, rows // 16), num_stages=2)


def padded(hs, theta):
    """The sizes of the parts of a head, and what they are padded to: products take 16 or more."""
    size_A = round(theta * hs)
    def block(size):
        return max(16, triton.next_power_of_2(size))
    return dict(SIZE_A=size_A, SIZE_P=hs - size_A, BLOCK_A=block(size_A),
                BLOCK_P=block(hs - size_A), BLOCK_HS=block(hs))


def launch(kernel, tensors, theta, heads):
    """Run a kernel for each head on `tensors`, q and k first, with the strides of the 4-D ones."""
    (B, nh, T, hs), nkv = tensors[0].shape, tensors[1].size(1)
    sizes = padded(hs, theta)
    chosen = tile(kernel, sizes['BLOCK_A'] + sizes['BLOCK_P'], tensors[0].itemsize)
    strides = [x.stride() for x in tensors if x.dim() == 4]
    scale = math.log2(math.e) / math.sqrt(sizes['SIZE_A'])
    grid = (triton.cdiv(T, chosen['ROWS']) * B * heads,)
    with torch.cuda.device_of(tensors[0]):
        kernel[grid](*tensors, *strides, T, nh, nh // nkv, scale, **sizes, **chosen)


def empty(B, heads, T, hs, like, dtype=None):
    """(B, heads, T, hs), stored as (B, T, heads, hs): model.py merges the heads without a copy."""
    return like.new_empty(B, T, heads, hs, dtype=dtype).transpose(1, 2)


@torch.library.custom_op('nanophase::tapa_forward', mutates_args=())
def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor,
            theta: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    out (B, nh, T, hs), the same in float32, and the scores' log-sum-exp in bits (B, nh, T). The
    table (MARGIN + T + MARGIN,) has r for each distance, between zeros.
    """
    outputs = forward_outputs(q, k, v, table, theta)
    launch(forward_kernel, [q, k, v, table[MARGIN:], *outputs], theta, q.size(1))
    return outputs


@forward.register_fake
def forward_outputs(q, k, v, table, theta):
    exact = empty(*q.shape, q, torch.float32)
    return empty(*q.shape, q), exact, q.new_empty(*q.shape[:3], dtype=torch.float32)


@torch.library.custom_op('nanophase::tapa_backward', mutates_args=())
def backward(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
             table: torch.Tensor, exact: torch.Tensor, lse: torch.Tensor, theta: float
             ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v."""
    dq, dk, dv = backward_outputs(do, q, k, v, table, exact, lse, theta)
    delta = (do * exact).sum(-1).contiguous()
    sums = torch.zeros_like(dq, dtype=torch.float32)
    launch(backward_kernel, [q, k, v, table[MARGIN:], lse, delta, do, sums, dk, dv], theta,
           k.size(1))
    size_A = round(theta * q.size(3))
    dq[..., :size_A] = sums[..., :size_A] * size_A**-0.5
    dq[..., size_A:] = sums[..., size_A:] * PHASE_UNIT.value
    return dq, dk, dv


@backward.register_fake
def backward_outputs(do, q, k, v, table, exact, lse, theta):
    return tuple(empty(*x.shape, x) for x in (q, k, v))


def save(ctx, inputs, output):
    *tensors, ctx.theta = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)  # of exact and lse there are none


def gradients(ctx, do, *_):
    return *backward(do, *ctx.saved_tensors, ctx.theta), None, None


forward.register_autograd(gradients, setup_context=save)


def why_not(q, k, v):
    """None if the kernels serve q (B, nh, T, hs) and k, v (B, nkv, T, hs), or the reason."""
    dtypes = [x.dtype for x in (q, k, v)]
    names = ', '.join(map(str, dtypes))
    if triton is None:
        return 'Triton is not installed'
    if not (q.is_cuda or interpreted):
        return f'Triton does not run on {q.device.type}'
    if torch.are_deterministic_algorithms_enabled():
        return 'its sums have no fixed order, and torch.use_deterministic_algorithms is on'
    if torch.version.hip:
        return "its blocks are chosen for NVIDIA's GPUs"
    if q.is_cuda and torch.cuda.get_device_properties(q.device).major < 8:
        return 'the GPU is older than compute capability 8.0'
    if dtypes[0] not in (torch.float32, torch.bfloat16) or len(set(dtypes)) > 1:
        return f'q, k, v are {names}, not all float32 or all bfloat16'
    if q.size(3) not in HEAD_SIZES:
        return f'the head size is {q.size(3)}, not from {HEAD_SIZES[0]} to {HEAD_SIZES[-1]}'
    return None


def tapa_attention(q, k, v, powers, theta, tapa_scale=2 * math.pi):
    """
    Causal TAPA at positions 0 .. T-1: (B, nh, T, hs), for q (B, nh, T, hs) and k, v
    (B, nkv, T, hs) of any strides. `powers` (T or more,) is d^alpha for d = 0, 1, ..., float32 and
    constant. The first theta hs dimensions of a head are its amplitude part, and tapa_scale
    multiplies the phase. The result can be differentiated once, backward.

    Raises ValueError for what it cannot serve.
    """
    if reason := why_not(q, k, v):
        raise ValueError(reason)
    (B, nh, T, hs), nkv = q.shape, k.size(1)
    fit = k.shape == v.shape == (B, nkv, T, hs) and nh % nkv == 0
    if not fit or powers.dtype != torch.float32 or len(powers) < T:
        # the kernels would read memory of others
        raise ValueError(f'q, k, v of {q.shape}, {k.shape}, {v.shape} do not fit each other, or '
                         f'{len(powers)} powers of {powers.dtype} do not fit them')
    unit = tapa_scale / math.pi / math.sqrt(hs - round(theta * hs))
    # zeros where m < n, or beyond T: there nothing counts
    table = F.pad(powers[:T] * unit, (MARGIN, MARGIN))
    return forward(q, k, v, table, theta)[0]


@torch.compiler.assume_constant_result  # torch.compile calls it while it traces, without a break
def warn(message):
    warnings.warn(message)  # Python shows a warning once
