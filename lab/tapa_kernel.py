"""
Token-Aware Phase Attention (arXiv 2509.12635), fused: what TAPA in model.py computes, without its T x T matrices.

Written out, every score is in memory, and with it its amplitude, its phase and its cosine: several (B, nh, T, T)
matrices, kept for the backward pass. One of them, in float32, for 16 heads at T = 32768, is 64 GiB. FlashAttention-2
(arXiv 2307.08691) avoids them for plain scores. A score of TAPA takes two products, so it needs its own kernel.

Forward. A program owns BLOCK_M queries of one head and walks over their keys, BLOCK_N at a time. A tile of scores lives
in registers only. The softmax is online: `top` is the greatest score so far, `total` the sum of exp(score - top), and
`acc` the sum of exp(score - top) v. Where a tile raises top, both sums shrink by exp(old top - new top). In the end,
out = acc / total. For the backward pass only q, k, v, out and the log-sum-exp, lse = top + log(total), are kept. Tiles
above the diagonal are not visited, and only those on it are masked.

Backward. The score s of a query at m and a key at n, apart by r = |m-n|^alpha, and its derivatives:

    s = a cos(2 pi r phi)                a = q_A.k_A / sqrt(size_A)       phi = q_P.k_P / sqrt(size_P)
    its derivative in a is cos(2 pi r phi), in phi it is -2 pi r a sin(2 pi r phi)

Tile by tile, a, phi and p = exp(s - lse) are computed anew. Write dx for the gradient of the loss in x. Since
out_m = sum_n p_mn v_n, that of the output, do, gives

    dv_n = sum_m p_mn do_m      dp_mn = do_m.v_n

and since p is the softmax of s, whose derivative of p_mj in s_mn is p_mj (1[j=n] - p_mn),

    ds_mn = p_mn (dp_mn - sum_j p_mj dp_mj) = p_mn (dp_mn - delta_m)      delta_m = do_m.(sum_j p_mj v_j) = do_m.out_m

From there on it is plain attention, once for each product: with da = ds cos(2 pi r phi) and
dphi = -ds 2 pi r a sin(2 pi r phi),

    dq_A = sum_n da k_A / sqrt(size_A)      dk_A = sum_m da q_A / sqrt(size_A)      dq_P, dk_P likewise, from dphi

The linear phase, phi = (sum q_P + sum k_P) / sqrt(size_P), has no second product: each dimension of dq_P is
sum_n dphi / sqrt(size_P). One kernel walks over keys for dq, another over queries for dk and dv. One program makes each
sum, in one order, so equal inputs give equal bits.

In the kernels, scores are in bits, s log2(e), for the hardware has exp2. Phases are in turns, r phi, for whole turns
are easily taken off. Both are float32, as all sums are. Only the operands of products have the dtype of q. The power
|m-n|^alpha is read from a table. Parts A and P are padded with zeros to powers of two. The letters are model.py's.
"""

import math
import os

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr
except ImportError:  # the kernels can still be read; why_not says that they cannot run
    triton, jit, constexpr = None, lambda kernel: kernel, bool

interpreted = os.environ.get('TRITON_INTERPRET') == '1'  # kernels run in numpy, on any device: slow, for tests
INTERPRETED = constexpr(interpreted)
HEAD_SIZES = range(16, 129)
MARGIN = 128  # zeros before and after the table of |m-n|^alpha, so that tiles may stick out: no block is larger


# ----------------------------------------------------------------------------------------------------------------------
# Pieces of the kernels. Of a tile, x are the rows and y the columns: queries and keys, or keys and queries.


@jit
def place(T, heads, BLOCK: constexpr):
    """The block of rows, the batch element and the head of this program; the last two int64: offsets may pass 2^31."""
    blocks = tl.cdiv(T, BLOCK)
    head = tl.program_id(0) // blocks
    return tl.program_id(0) % blocks, (head // heads).to(tl.int64), (head % heads).to(tl.int64)


@jit
def span(start, BLOCK: constexpr):
    """start, start + 1, ...: (BLOCK,)."""
    return start + tl.arange(0, BLOCK).to(tl.int64)


@jit
def cells(x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """Pointers (rows, BLOCK) to rows of head h of x (B, heads, T, hs), SIZE columns from FIRST on; and which exist."""
    columns = tl.arange(0, BLOCK)
    row = x + b * strides[0] + h * strides[1] + rows * strides[2]
    return row[:, None] + (FIRST + columns)[None, :] * strides[3], (rows < T)[:, None] & (columns < SIZE)[None, :]


@jit
def load(x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """A tile (rows, BLOCK) of x, with zeros where there is nothing."""
    pointers, exist = cells(x, strides, b, h, rows, T, FIRST, SIZE, BLOCK)
    return tl.load(pointers, mask=exist, other=0.0)


@jit
def load_parts(x, strides, b, h, rows, T, SIZE_A: constexpr, SIZE_P: constexpr, BLOCK_A: constexpr, BLOCK_P: constexpr,
               LINEAR: constexpr):
    """Parts A (rows, BLOCK_A) and P (rows, BLOCK_P) of queries or keys; of P the sum (rows,) if the phase is linear."""
    x_A = load(x, strides, b, h, rows, T, 0, SIZE_A, BLOCK_A)
    x_P = load(x, strides, b, h, rows, T, SIZE_A, SIZE_P, BLOCK_P)
    if LINEAR:
        x_P = tl.sum(x_P.to(tl.float32), axis=1)
    return x_A, x_P


@jit
def store(tile, x, strides, b, h, rows, T, FIRST: constexpr, SIZE: constexpr, BLOCK: constexpr):
    """Write a tile (rows, BLOCK) of x, or (rows,) into each of its columns."""
    if len(tile.shape) == 1:
        tile = tile[:, None] + tl.zeros([1, BLOCK], tl.float32)
    pointers, exist = cells(x, strides, b, h, rows, T, FIRST, SIZE, BLOCK)
    tl.store(pointers, tile.to(x.dtype.element_ty), mask=exist)


@jit
def dot(x, y):
    """The matrix product in float32, on the tensor cores for 16-bit operands; float32 ones are not rounded to TF32."""
    if INTERPRETED:  # whose own product takes the bits of a bfloat16 for an integer
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision='ieee')


@jit
def cosine_and_sine(turns):
    """cos and sin of 2 pi turns, within 1e-6. The compiler leaves out the one that the caller does not use."""
    x = turns - tl.floor(turns + 0.5)  # in [-1/2, 1/2], where these polynomials have the least greatest error
    y = x * x
    cosine = -19.7392045 + y * (64.939119 + y * (-85.4501655 + y * (60.1678315 + y * (-25.9683126 + y * 6.52960946))))
    sine = 6.28318282 + y * (-41.3414214 + y * (81.5961839 + y * (-76.5801004 + y * (41.2053945 + y * -12.2712617))))
    return 1.0 + y * cosine, x * sine


@jit
def amplitude_and_turns(x_A, x_P, y_A, y_P, r, LINEAR: constexpr):
    """a and r phi of a tile. `r` holds the 1 / sqrt(size_P) of phi already; the 1 / sqrt(size_A) of a comes later."""
    if LINEAR:
        phi = x_P[:, None] + y_P[None, :]
    else:
        phi = dot(x_P, y_P.T)
    return dot(x_A, y_A.T), r * phi


@jit
def score_gradients(a, turns, r, scale, lse, dp, delta, seen, MASKED: constexpr):
    """p, da and dphi of a tile; the latter two lack constant factors, which wait for the end of their sums."""
    cosine, sine = cosine_and_sine(turns)
    p = tl.exp2(a * cosine * scale - lse)  # scale is log2(e) / sqrt(size_A)
    if MASKED:
        p = tl.where(seen, p, 0.0)
    ds = p * (dp - delta)
    return p, ds * cosine, ds * sine * (a * r)


@jit
def add_phase(total, dphi, y_P, LINEAR: constexpr):
    """total + sum over the columns of dphi y_P: (rows, BLOCK_P); of dphi alone, (rows,), if the phase is linear."""
    if LINEAR:
        return total + tl.sum(dphi, axis=1)
    else:
        return total + dot(dphi.to(y_P.dtype), y_P)


# ----------------------------------------------------------------------------------------------------------------------
# The kernels


@jit
def forward_kernel(q, k, v, table, out, lse, q_strides, k_strides, v_strides, out_strides, T, nh, group, scale,
                   SIZE_A: constexpr, SIZE_P: constexpr, BLOCK_A: constexpr, BLOCK_P: constexpr,
                   BLOCK_HS: constexpr, LINEAR: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr):
    """out (B, nh, T, hs) and lse (B, nh, T) for BLOCK_M queries of a head: a walk over their keys."""
    block, b, h = place(T, nh, BLOCK_M)
    m0 = (tl.cdiv(T, BLOCK_M) - 1 - block) * BLOCK_M  # the last queries, which have the most keys, come first
    m = span(m0, BLOCK_M)
    q_A, q_P = load_parts(q, q_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
    top = tl.full([BLOCK_M], float('-inf'), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_HS], tl.float32)
    for diagonal in tl.static_range(2):  # first the keys before all of the block's queries, then those among them
        for n0 in range(m0 * diagonal, tl.minimum(m0 + BLOCK_M * diagonal, T), BLOCK_N):
            n = span(n0, BLOCK_N)
            apart = m[:, None] - n[None, :]
            k_A, k_P = load_parts(k, k_strides, b, h // group, n, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
            a, turns = amplitude_and_turns(q_A, q_P, k_A, k_P, tl.load(table + apart), LINEAR)
            cosine, _ = cosine_and_sine(turns)
            s = a * cosine
            if diagonal:
                s = tl.where(apart >= 0, s, float('-inf'))
            new_top = tl.maximum(top, tl.max(s, axis=1) * scale)  # finite: the first tile has a key for every query
            p = tl.exp2(s * scale - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(p, axis=1)
            v_n = load(v, v_strides, b, h // group, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
            acc = acc * shrink[:, None] + dot(p.to(v_n.dtype), v_n)
            top = new_top
    store(acc / total[:, None], out, out_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    tl.store(lse + (b * nh + h) * T + m, top + tl.log2(total), mask=m < T)


@jit
def dq_kernel(q, k, v, table, out, lse, delta, do, dq,
              q_strides, k_strides, v_strides, out_strides, do_strides, dq_strides,
              T, nh, group, scale, SIZE_A: constexpr, SIZE_P: constexpr, BLOCK_A: constexpr, BLOCK_P: constexpr,
              BLOCK_HS: constexpr, LINEAR: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr):
    """dq (B, nh, T, hs) and delta (B, nh, T) for BLOCK_M queries of a head: a walk over their keys."""
    block, b, h = place(T, nh, BLOCK_M)
    m0 = (tl.cdiv(T, BLOCK_M) - 1 - block) * BLOCK_M
    m = span(m0, BLOCK_M)
    q_A, q_P = load_parts(q, q_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
    do_m = load(do, do_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    out_m = load(out, out_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    delta_m = tl.sum(do_m.to(tl.float32) * out_m.to(tl.float32), axis=1)
    tl.store(delta + (b * nh + h) * T + m, delta_m, mask=m < T)  # dkv_kernel, which runs next, needs it too
    lse_m = tl.load(lse + (b * nh + h) * T + m, mask=m < T, other=0.0)
    dq_A = tl.zeros([BLOCK_M, BLOCK_A], tl.float32)
    dq_P = tl.zeros([BLOCK_M] if LINEAR else [BLOCK_M, BLOCK_P], tl.float32)
    for diagonal in tl.static_range(2):
        for n0 in range(m0 * diagonal, tl.minimum(m0 + BLOCK_M * diagonal, T), BLOCK_N):
            n = span(n0, BLOCK_N)
            apart = m[:, None] - n[None, :]
            r = tl.load(table + apart)
            k_A, k_P = load_parts(k, k_strides, b, h // group, n, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
            a, turns = amplitude_and_turns(q_A, q_P, k_A, k_P, r, LINEAR)
            dp = dot(do_m, load(v, v_strides, b, h // group, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS).T)
            _, da, dphi = score_gradients(a, turns, r, scale, lse_m[:, None], dp, delta_m[:, None], apart >= 0,
                                          diagonal)
            dq_A += dot(da.to(k_A.dtype), k_A)
            dq_P = add_phase(dq_P, dphi, k_P, LINEAR)
    store(dq_A * SIZE_A**-0.5, dq, dq_strides, b, h, m, T, 0, SIZE_A, BLOCK_A)
    store(dq_P * (-6.283185307179586 * SIZE_A**-0.5), dq, dq_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_P)


@jit
def dkv_kernel(q, k, v, table, lse, delta, do, dk, dv,
               q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
               T, nh, group, scale, SIZE_A: constexpr, SIZE_P: constexpr, BLOCK_A: constexpr, BLOCK_P: constexpr,
               BLOCK_HS: constexpr, LINEAR: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr):
    """dk and dv (B, nkv, T, hs) for BLOCK_N keys of a head: a walk over the queries that see them, in all its heads."""
    block, b, g = place(T, nh // group, BLOCK_N)
    n0 = block * BLOCK_N  # the first keys are seen by the most queries
    n = span(n0, BLOCK_N)
    k_A, k_P = load_parts(k, k_strides, b, g, n, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
    v_n = load(v, v_strides, b, g, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)
    dk_A = tl.zeros([BLOCK_N, BLOCK_A], tl.float32)
    dk_P = tl.zeros([BLOCK_N] if LINEAR else [BLOCK_N, BLOCK_P], tl.float32)
    dv_n = tl.zeros([BLOCK_N, BLOCK_HS], tl.float32)
    for i in range(group):  # the query heads that this key/value head serves
        h = g * group + i
        row = (b * nh + h) * T
        for later in tl.static_range(2):  # the queries among the block's keys, then those after all of them
            for m0 in range(n0 + BLOCK_N * later, T if later else tl.minimum(n0 + BLOCK_N, T), BLOCK_M):
                m = span(m0, BLOCK_M)
                apart = m[None, :] - n[:, None]  # a row of these tiles is a key
                r = tl.load(table + apart)
                q_A, q_P = load_parts(q, q_strides, b, h, m, T, SIZE_A, SIZE_P, BLOCK_A, BLOCK_P, LINEAR)
                do_m = load(do, do_strides, b, h, m, T, 0, SIZE_A + SIZE_P, BLOCK_HS)  # zero, and no gradient, beyond T
                lse_m = tl.load(lse + row + m, mask=m < T, other=0.0)
                delta_m = tl.load(delta + row + m, mask=m < T, other=0.0)
                a, turns = amplitude_and_turns(k_A, k_P, q_A, q_P, r, LINEAR)
                dp = dot(v_n, do_m.T)
                p, da, dphi = score_gradients(a, turns, r, scale, lse_m[None, :], dp, delta_m[None, :], apart >= 0,
                                              not later)
                dv_n += dot(p.to(do_m.dtype), do_m)
                dk_A += dot(da.to(q_A.dtype), q_A)
                dk_P = add_phase(dk_P, dphi, q_P, LINEAR)
    store(dk_A * SIZE_A**-0.5, dk, dk_strides, b, g, n, T, 0, SIZE_A, BLOCK_A)
    store(dk_P * (-6.283185307179586 * SIZE_A**-0.5), dk, dk_strides, b, g, n, T, SIZE_A, SIZE_P, BLOCK_P)
    store(dv_n, dv, dv_strides, b, g, n, T, 0, SIZE_A + SIZE_P, BLOCK_HS)


# ----------------------------------------------------------------------------------------------------------------------
# Their launch, and the operators that PyTorch sees


def blocks(kernel, width, itemsize, major):
    """
    The blocks of a kernel for heads of this padded width, on a GPU of compute capability `major`.x. What a program owns
    is a multiple of what it walks over. When tuning, look at the registers that spill and at the shared memory: the
    smaller GPUs have 99 KiB of it. `python -m lab.tests.compile_kernels 80 90` prints both, with no GPU.
    """
    if interpreted:
        own, other = 64, 64
    elif itemsize == 4:  # no tensor cores
        own, other = 32, 16
    else:
        own = 128 if kernel is forward_kernel else 64
        other = 64 if width <= 64 and kernel is not dkv_kernel else 32
        # compute capabilities 9 and 10 multiply from shared memory, the others from registers
        fits = 128 if kernel is dq_kernel or major in (9, 10) else 64
        if kernel is not forward_kernel and width > fits:
            other = 16  # with 32, some 10 kB of registers spill
    BLOCK_M, BLOCK_N = (other, own) if kernel is dkv_kernel else (own, other)
    return dict(BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=max(4, own // 16), num_stages=2)


def padded(hs, size_A):
    """The sizes of the parts of a head, and the powers of two that they are padded to: products take 16 or more."""
    size_P = hs - size_A
    return dict(SIZE_A=size_A, SIZE_P=size_P, BLOCK_A=power_of_two(size_A), BLOCK_P=power_of_two(size_P),
                BLOCK_HS=power_of_two(hs))


def power_of_two(size):
    """The least power of two that is no less than `size`, and at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def launch(kernel, tensors, theta, phase):
    """Run a kernel on `tensors`, q and k first, with the strides of those that are (B, heads, T, hs), in order."""
    (B, nh, T, hs), nkv = tensors[0].shape, tensors[1].size(1)
    size_A = round(theta * hs)
    sizes = padded(hs, size_A)
    major = 0 if interpreted else torch.cuda.get_device_properties(tensors[0].device).major
    chosen = blocks(kernel, sizes['BLOCK_A'] + sizes['BLOCK_P'], tensors[0].itemsize, major)
    rows, columns, heads = chosen['BLOCK_M'], chosen['BLOCK_N'], nh
    if kernel is dkv_kernel:
        rows, columns, heads = columns, rows, nkv
    assert rows % columns == 0 and rows <= MARGIN, 'tiles off the diagonal are not masked, and the table ends'
    strides = [x.stride() for x in tensors if x.dim() == 4]
    scale = math.log2(math.e) / math.sqrt(size_A)
    with torch.cuda.device_of(tensors[0]):
        kernel[(triton.cdiv(T, rows) * B * heads,)](*tensors, *strides, T, nh, nh // nkv, scale, **sizes, **chosen,
                                                    LINEAR=phase == 'linear')


def empty(B, heads, T, hs, like):
    """(B, heads, T, hs), stored as (B, T, heads, hs): model.py then merges the heads without a copy."""
    return like.new_empty(B, T, heads, hs).transpose(1, 2)


def table(powers, T, size_P):
    """powers / sqrt(size_P), (T + MARGIN,), for indices from -MARGIN on: where m < n, or beyond T, nothing counts."""
    return F.pad(powers[:T] * size_P**-0.5, (MARGIN, MARGIN))[MARGIN:]


@torch.library.custom_op('nanophase::tapa_forward', mutates_args=())
def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, powers: torch.Tensor, theta: float,
            phase: str) -> tuple[torch.Tensor, torch.Tensor]:
    """out (B, nh, T, hs) and the log-sum-exp of each row of scores, in bits, (B, nh, T)."""
    B, nh, T, hs = q.shape
    out, lse = forward_outputs(q, k, v, powers, theta, phase)
    launch(forward_kernel, [q, k, v, table(powers, T, hs - round(theta * hs)), out, lse], theta, phase)
    return out, lse


@forward.register_fake
def forward_outputs(q, k, v, powers, theta, phase):
    B, nh, T, hs = q.shape
    return empty(B, nh, T, hs, q), q.new_empty(B, nh, T, dtype=torch.float32)


@torch.library.custom_op('nanophase::tapa_backward', mutates_args=())
def backward(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, powers: torch.Tensor,
             out: torch.Tensor, lse: torch.Tensor, theta: float,
             phase: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v."""
    T, hs = q.size(2), q.size(3)
    dq, dk, dv = backward_outputs(do, q, k, v, powers, out, lse, theta, phase)
    distances, delta = table(powers, T, hs - round(theta * hs)), torch.empty_like(lse)
    launch(dq_kernel, [q, k, v, distances, out, lse, delta, do, dq], theta, phase)
    launch(dkv_kernel, [q, k, v, distances, lse, delta, do, dk, dv], theta, phase)
    return dq, dk, dv


@backward.register_fake
def backward_outputs(do, q, k, v, powers, out, lse, theta, phase):
    return tuple(empty(*x.shape, x) for x in (q, k, v))


def save(ctx, inputs, output):
    *tensors, ctx.theta, ctx.phase = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)  # of lse there is none


def gradients(ctx, do, _):
    return *backward(do, *ctx.saved_tensors, ctx.theta, ctx.phase), None, None, None


forward.register_autograd(gradients, setup_context=save)


def why_not(q, k, v):
    """None if the kernels serve queries q (B, nh, T, hs) and keys and values k, v (B, nkv, S, hs), or the reason."""
    if triton is None:
        return 'Triton is not installed'
    if not (q.is_cuda or interpreted):
        return f'Triton does not run on {q.device.type}'
    if not q.device == k.device == v.device:
        return f'q, k, v are on {q.device}, {k.device}, {v.device}'
    if torch.version.hip:
        return "its blocks are chosen for NVIDIA's GPUs"
    if q.is_cuda and torch.cuda.get_device_properties(q.device).major < 8:
        return 'the GPU is older than compute capability 8.0'
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not q.dtype == k.dtype == v.dtype:
        return f'q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, not all float32, all bfloat16 or all float16'
    if q.size(3) not in HEAD_SIZES:
        return f'the head size is {q.size(3)}, not from {HEAD_SIZES[0]} to {HEAD_SIZES[-1]}'
    if q.size(2) != k.size(2):
        return f'{q.size(2)} queries for {k.size(2)} keys, as in cached decoding: only the same number is served'
    if q.numel() == 0:
        return 'there are no queries'
    return None


def tapa_attention(q, k, v, powers, theta, phase):
    """
    Causal TAPA at positions 0 .. T-1: (B, nh, T, hs), for q (B, nh, T, hs) and k, v (B, nkv, T, hs) of any strides.
    `powers` (T or more,) is d^alpha for d = 0, 1, ..., float32 and constant. The first theta hs dimensions of a head
    are its amplitude part. phase is 'quadratic' or 'linear'. The result can be differentiated once. Raises ValueError
    for what it cannot serve.
    """
    if not (q.dim() == k.dim() == 4 and k.shape == v.shape and q.size(0) == k.size(0) and q.size(3) == k.size(3)
            and q.size(1) % k.size(1) == 0):
        raise ValueError(f'q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: must be (B, nh, T, hs) and '
                         'twice (B, nkv, T, hs), with nkv a divisor of nh')
    if reason := why_not(q, k, v):
        raise ValueError(reason)
    T, hs = q.size(2), q.size(3)
    if powers.dim() != 1 or powers.size(0) < T or powers.dtype != torch.float32 or powers.requires_grad:
        raise ValueError(f'powers {tuple(powers.shape)}, {powers.dtype}: must be ({T} or more,), float32 and constant')
    if not 0 < theta < 1 or abs(theta * hs - round(theta * hs)) > 1e-6:
        raise ValueError(f'theta={theta}: must be in (0, 1) and a whole number of the {hs} dimensions of a head')
    if phase not in ('quadratic', 'linear'):
        raise ValueError(f"phase={phase!r}: must be 'quadratic' or 'linear'")
    return forward(q, k, v, powers, theta, phase)[0]
