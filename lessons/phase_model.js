'use strict'
// The decoder of model.py in plain JavaScript, with its gradients and AdamW: one layer, one head,
// float32. lessons/phase.html holds this file word for word and runs it in a worker.
// lessons/tests/test_phase.py compares it with model.py: loss, gradients and ten updates.
// B strings of T tokens, N = B T rows; C = n_embd = 2P numbers in each row, V letters.

// ---- a tensor knows its gradient, and the tape knows how to get it ---------------------------

/** Rows of numbers, row after row in one array, and the gradient of the loss by each number. */
class Tensor {
  constructor(rows, width) {
    this.rows = rows
    this.width = width
    this.value = new Float32Array(rows * width)
    this.grad = new Float32Array(rows * width)
  }
}

/** What each operation has to do on the way back. The last one is the first to do it. */
const tape = []

function backward() {
  while (tape.length > 0) tape.pop()()
}

/** The dot product of `width` numbers of a, from place i on, and of b, from place j on. */
function dot(a, i, b, j, width) {
  let sum = 0
  for (let l = 0; l < width; l++) sum += a[i + l] * b[j + l]
  return sum
}

/** Adds `factor` times `width` numbers of x, from place j on, to those of y, from place i on. */
function addTo(y, i, factor, x, j, width) {
  for (let l = 0; l < width; l++) y[i + l] += factor * x[j + l]
}

// ---- the operations: each computes its result, and leaves its way back on the tape -----------

/** The rows of the table for the token ids idx: (N, C). */
function embed(table, idx) {
  const C = table.width
  const y = new Tensor(idx.length, C)
  idx.forEach((token, n) => addTo(y.value, n * C, 1, table.value, token * C, C))
  tape.push(() => {
    idx.forEach((token, n) => addTo(table.grad, token * C, 1, y.grad, n * C, C))
  })
  return y
}

/** x W^T, with W (outputs, inputs) as in PyTorch. */
function linear(x, W) {
  const [inputs, outputs] = [W.width, W.rows]
  const y = new Tensor(x.rows, outputs)
  for (let n = 0; n < x.rows; n++) {
    for (let j = 0; j < outputs; j++) {
      y.value[n * outputs + j] = dot(x.value, n * inputs, W.value, j * inputs, inputs)
    }
  }
  tape.push(() => {
    for (let n = 0; n < x.rows; n++) {
      for (let j = 0; j < outputs; j++) {
        const dy = y.grad[n * outputs + j]
        addTo(x.grad, n * inputs, dy, W.value, j * inputs, inputs)
        addTo(W.grad, j * inputs, dy, x.value, n * inputs, inputs)
      }
    }
  })
  return y
}

/** RMSNorm: each row divided by the root of its mean square, times the gain g. */
function rmsNorm(x, g) {
  const C = x.width
  const y = new Tensor(x.rows, C)
  const scale = new Float32Array(x.rows)
  for (let n = 0; n < x.rows; n++) {
    const meanSquare = dot(x.value, n * C, x.value, n * C, C) / C
    scale[n] = 1 / Math.sqrt(meanSquare + 1e-5)
    for (let l = 0; l < C; l++) y.value[n * C + l] = x.value[n * C + l] * scale[n] * g.value[l]
  }
  tape.push(() => {
    for (let n = 0; n < x.rows; n++) {
      let mean = 0
      for (let l = 0; l < C; l++) {
        const unit = x.value[n * C + l] * scale[n]
        g.grad[l] += y.grad[n * C + l] * unit
        mean += y.grad[n * C + l] * g.value[l] * unit / C
      }
      for (let l = 0; l < C; l++) {
        const unit = x.value[n * C + l] * scale[n]
        x.grad[n * C + l] += scale[n] * (y.grad[n * C + l] * g.value[l] - unit * mean)
      }
    }
  })
  return y
}

/** x + y, the residual stream. */
function add(x, y) {
  const sum = new Tensor(x.rows, x.width)
  addTo(sum.value, 0, 1, x.value, 0, x.value.length)
  addTo(sum.value, 0, 1, y.value, 0, y.value.length)
  tape.push(() => {
    addTo(x.grad, 0, 1, sum.grad, 0, sum.grad.length)
    addTo(y.grad, 0, 1, sum.grad, 0, sum.grad.length)
  })
  return sum
}

/** silu(gate) * up, the inside of SwiGLU. silu(x) = x sigmoid(x). */
function gated(gate, up) {
  const y = new Tensor(gate.rows, gate.width)
  const sigmoid = gate.value.map(x => 1 / (1 + Math.exp(-x)))
  for (let j = 0; j < y.value.length; j++) y.value[j] = gate.value[j] * sigmoid[j] * up.value[j]
  tape.push(() => {
    for (let j = 0; j < y.value.length; j++) {
      const slope = sigmoid[j] * (1 + gate.value[j] * (1 - sigmoid[j]))
      gate.grad[j] += y.grad[j] * up.value[j] * slope
      up.grad[j] += y.grad[j] * gate.value[j] * sigmoid[j]
    }
  })
  return y
}

/**
 * Pair i of row t is x_i + 1j x_{i+P}. It is multiplied by A_i e^{1j (t Omega_i + Phi_i)}; a key
 * has no Phi. RoPE is the same with the fixed frequencies theta, with A = 1 and Phi = 0.
 */
function rotate(x, T, { Omega, A, Phi }, isQuery) {
  const C = x.width
  const P = C / 2
  const y = new Tensor(x.rows, C)
  for (let n = 0; n < x.rows; n++) {
    for (let i = 0; i < P; i++) {
      const [real, imaginary] = [n * C + i, n * C + i + P]
      const angle = (n % T) * Omega.value[i] + (isQuery ? Phi.value[i] : 0)
      const [cos, sin] = [A.value[i] * Math.cos(angle), A.value[i] * Math.sin(angle)]
      y.value[real] = cos * x.value[real] - sin * x.value[imaginary]
      y.value[imaginary] = sin * x.value[real] + cos * x.value[imaginary]
    }
  }
  tape.push(() => {
    for (let n = 0; n < x.rows; n++) {
      for (let i = 0; i < P; i++) {
        const [real, imaginary] = [n * C + i, n * C + i + P]
        const angle = (n % T) * Omega.value[i] + (isQuery ? Phi.value[i] : 0)
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)]
        // the gradient, rotated back
        const backReal = cos * y.grad[real] + sin * y.grad[imaginary]
        const backImaginary = cos * y.grad[imaginary] - sin * y.grad[real]
        x.grad[real] += A.value[i] * backReal
        x.grad[imaginary] += A.value[i] * backImaginary
        A.grad[i] += x.value[real] * backReal + x.value[imaginary] * backImaginary
        const byAngle = y.value[real] * y.grad[imaginary] - y.value[imaginary] * y.grad[real]
        Omega.grad[i] += (n % T) * byAngle
        if (isQuery) Phi.grad[i] += byAngle
      }
    }
  })
  return y
}

/** softmax(q k^T / sqrt(C)) v over the tokens up to each query's own, and the weights (N, T). */
function attend(q, k, v, T) {
  const C = q.width
  const y = new Tensor(q.rows, C)
  const weights = new Tensor(q.rows, T)
  for (let row = 0; row < q.rows; row++) {
    const m = row % T
    const first = row - m  // the first token of the string
    const w = weights.value.subarray(row * T, row * T + m + 1)
    for (let n = 0; n <= m; n++) {
      w[n] = dot(q.value, row * C, k.value, (first + n) * C, C) / Math.sqrt(C)
    }
    softmaxInPlace(w)
    for (let n = 0; n <= m; n++) addTo(y.value, row * C, w[n], v.value, (first + n) * C, C)
  }
  tape.push(() => {
    for (let row = 0; row < q.rows; row++) {
      const m = row % T
      const first = row - m
      const w = weights.value.subarray(row * T, row * T + m + 1)
      const dw = w.map((_, n) => dot(y.grad, row * C, v.value, (first + n) * C, C))
      const mean = dot(w, 0, dw, 0, m + 1)
      for (let n = 0; n <= m; n++) {
        const dscore = w[n] * (dw[n] - mean) / Math.sqrt(C)
        addTo(q.grad, row * C, dscore, k.value, (first + n) * C, C)
        addTo(k.grad, (first + n) * C, dscore, q.value, row * C, C)
        addTo(v.grad, (first + n) * C, w[n], y.grad, row * C, C)
      }
    }
  })
  return { y, weights: weights.value }
}

function softmaxInPlace(scores) {
  const highest = scores.reduce((a, b) => Math.max(a, b))
  let total = 0
  for (let n = 0; n < scores.length; n++) {
    scores[n] = Math.exp(scores[n] - highest)
    total += scores[n]
  }
  for (let n = 0; n < scores.length; n++) scores[n] /= total
}

/** The mean of -ln(probability) of the targets that are not -1, and each row's likeliest letter. */
function crossEntropy(logits, targets) {
  const V = logits.width
  const asked = targets.filter(target => target >= 0).length
  const answers = []
  let [loss, hits] = [0, 0]
  const p = logits.value.slice()
  targets.forEach((target, n) => {
    const row = p.subarray(n * V, n * V + V)
    softmaxInPlace(row)
    answers.push(row.indexOf(row.reduce((a, b) => Math.max(a, b))))
    if (target < 0) return
    loss -= Math.log(Math.max(row[target], 1e-30)) / asked
    if (answers[n] === target) hits += 1
  })
  tape.push(() => {
    targets.forEach((target, n) => {
      if (target < 0) return
      for (let letter = 0; letter < V; letter++) {
        const wanted = letter === target ? 1 : 0
        logits.grad[n * V + letter] += (p[n * V + letter] - wanted) / asked
      }
    })
  })
  return { loss, right: hits / asked, answers }
}

// ---- the model -------------------------------------------------------------------------------

/** Numbers from a seed: uniform in [0, 1) by mulberry32, and normal ones by Box and Muller. */
function makeRandom(seed) {
  let a = seed | 0
  const uniform = () => {
    a = (a + 0x6d2b79f5) | 0
    let x = Math.imul(a ^ (a >>> 15), 1 | a)
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32
  }
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform())
  return { uniform, normal }
}

const [V, C, P, INNER] = [6, 32, 16, 88]
const POSITIONAL = ['Omega', 'A', 'Phi']

/** The parameters, as model.py draws them: N(0, 0.02^2), less where they add up in the stream. */
function makeModel(options, random) {
  const matrix = (rows, width, std) => {
    const W = new Tensor(rows, width)
    for (let j = 0; j < W.value.length; j++) W.value[j] = std * random.normal()
    return W
  }
  const filled = (width, value) => {
    const row = new Tensor(1, width)
    row.value.fill(value)
    return row
  }
  const added = 0.02 / Math.sqrt(2)
  const model = {
    embedding: matrix(V, C, 0.02),
    norm_1: filled(C, 1), qkv: matrix(3 * C, C, 0.02), proj: matrix(C, C, added),
    norm_2: filled(C, 1), gate: matrix(INNER, C, 0.02), up: matrix(INNER, C, 0.02),
    down: matrix(C, INNER, added), norm: filled(C, 1), lm_head: matrix(V, C, 0.02),
    Omega: filled(P, 0), A: filled(P, 1), Phi: filled(P, 0),
  }
  for (let i = 0; i < P; i++) {
    model.Omega.value[i] = options.base ** (-2 * i / C)
    if (options.attention === 'spectral') model.Phi.value[i] = 1e-3 * random.normal()
  }
  return model
}

/** One of three matrices that model.py keeps as one: of q, k or v. */
function part(W, which) {
  const size = C * C
  const from = which * size
  return {
    rows: C, width: C,
    value: W.value.subarray(from, from + size), grad: W.grad.subarray(from, from + size),
  }
}

/** Token ids idx, strings of T after one another, to logits (N, V) and attention weights (N, T). */
function forward(model, attention, idx, T) {
  tape.length = 0
  let x = embed(model.embedding, idx)
  const inside = rmsNorm(x, model.norm_1)
  let q = linear(inside, part(model.qkv, 0))
  let k = linear(inside, part(model.qkv, 1))
  const v = linear(inside, part(model.qkv, 2))
  if (attention !== 'nope') {
    q = rotate(q, T, model, true)
    k = rotate(k, T, model, false)
  }
  const { y, weights } = attend(q, k, v, T)
  x = add(x, linear(y, model.proj))
  const thought = rmsNorm(x, model.norm_2)
  const hidden = gated(linear(thought, model.gate), linear(thought, model.up))
  x = add(x, linear(hidden, model.down))
  return { logits: linear(rmsNorm(x, model.norm), model.lm_head), weights }
}

// ---- training --------------------------------------------------------------------------------

/** The task of tasks.py: ^, a strand of letters, and blanks that ask for it again, in T tokens. */
function repeat(strands, T) {
  const [idx, targets] = [[], []]
  for (const strand of strands) {
    const P = strand.length
    for (let t = 0; t < T; t++) {
      const letter = strand[(t + P - 1) % P]
      if (t === 0) idx.push(0)
      else idx.push(t <= P ? letter : 5)
      targets.push(t <= P ? -1 : letter)
    }
  }
  return { idx, targets }
}

/** B random strands of `period` letters, as strings of T tokens. */
function sample(random, period, B, T) {
  const strand = () => Array.from({ length: period }, () => 1 + Math.floor(4 * random.uniform()))
  return repeat(Array.from({ length: B }, strand), T)
}

const RECIPE = {
  learning_rate: 1.6e-2, positional_lr: 1e-2, weight_decay: 0.1, beta1: 0.9, beta2: 0.99,
  warmup: 20, max_iters: 120,
}

/** The parameters that this attention learns, by name. */
function learnedBy(attention, model) {
  return Object.keys(model).filter(name => attention === 'spectral' || !POSITIONAL.includes(name))
}

/** A share of the rate: linear up to 1, then along a cosine down to 0. */
function schedule(iteration, { warmup, max_iters }) {
  if (iteration < warmup) return (iteration + 1) / (warmup + 1)
  const progress = Math.min(1, (iteration - warmup) / (max_iters - warmup))
  return 0.5 * (1 + Math.cos(Math.PI * progress))
}

/** One update by AdamW: gradients clipped to the norm 1, no decay for positions and vectors. */
function adamW(model, names, moments, iteration, recipe) {
  const { beta1, beta2 } = recipe
  let square = 0
  for (const name of names) {
    const { grad } = model[name]
    square += dot(grad, 0, grad, 0, grad.length)
  }
  const clip = Math.min(1, 1 / (Math.sqrt(square) + 1e-6))
  for (const name of names) {
    const { value, grad, rows } = model[name]
    moments[name] ??= { first: value.map(() => 0), second: value.map(() => 0) }
    const { first, second } = moments[name]
    const peak = POSITIONAL.includes(name) ? recipe.positional_lr : recipe.learning_rate
    const rate = peak * schedule(iteration, recipe)
    const decays = rows > 1 && name !== 'embedding'
    const keep = decays ? 1 - rate * recipe.weight_decay : 1
    for (let j = 0; j < value.length; j++) {
      const g = clip * grad[j]
      first[j] = beta1 * first[j] + (1 - beta1) * g
      second[j] = beta2 * second[j] + (1 - beta2) * g * g
      const mean = first[j] / (1 - beta1 ** (iteration + 1))
      const size = Math.sqrt(second[j] / (1 - beta2 ** (iteration + 1)))
      value[j] = keep * value[j] - rate * mean / (size + 1e-8)
    }
  }
}

/** A model in training. Options: attention (spectral, rope or nope), base, period, seed. */
class Run {
  constructor(options) {
    this.options = { attention: 'spectral', base: 1000, period: 10, seed: 1, ...options }
    this.T = 5 * this.options.period + 1  // the strand, and four turns of blanks
    this.random = makeRandom(this.options.seed)
    this.model = makeModel(this.options, this.random)
    const strand = [1, 2, 3, 4, 4, 3, 2, 1, 1, 3, 4, 2].slice(0, this.options.period)
    this.shown = repeat([strand], 8 * this.T)  // what the page shows
    this.moments = {}
    this.iteration = 0
  }

  /** The loss of a batch and its share of right answers; leaves the gradients in the model. */
  lossAndGradients(idx, targets, T) {
    for (const { grad } of Object.values(this.model)) grad.fill(0)
    const { logits } = forward(this.model, this.options.attention, idx, T)
    const result = crossEntropy(logits, targets)
    backward()
    return result
  }

  update(batch = sample(this.random, this.options.period, 8, this.T)) {
    const result = this.lossAndGradients(batch.idx, batch.targets, this.T)
    const names = learnedBy(this.options.attention, this.model)
    adamW(this.model, names, this.moments, this.iteration, RECIPE)
    this.iteration += 1
    return result
  }

  /** Loss and share of right answers on new strings of `length` tokens, the same ones each time. */
  evaluate(length, strings = 4) {
    const { idx, targets } = sample(makeRandom(99), this.options.period, strings, length)
    const { logits } = forward(this.model, this.options.attention, idx, length)
    return crossEntropy(logits, targets)
  }

  /** What the page draws: the answers and the attention weights of the shown string. */
  look(length = this.T) {
    const idx = this.shown.idx.slice(0, length)
    const targets = this.shown.targets.slice(0, length)
    const { logits, weights } = forward(this.model, this.options.attention, idx, length)
    const { answers } = crossEntropy(logits, targets)
    const [Omega, A, Phi] = POSITIONAL.map(name => Array.from(this.model[name].value))
    return { iteration: this.iteration, idx, targets, answers, weights, Omega, A, Phi }
  }

  /** Each frequency to its nearest multiple of 2 pi / q: a period of q tokens for every pair. */
  crystallise(q) {
    const unit = 2 * Math.PI / q
    this.model.Omega.value.forEach((Omega, i, all) => { all[i] = unit * Math.round(Omega / unit) })
  }

  /** The loss at the training length for every q that the frequencies could be moved to. */
  periods() {
    const learned = this.model.Omega.value.slice()
    const losses = []
    for (let q = 2; q <= 24; q++) {
      this.crystallise(q)
      losses.push({ q, loss: this.evaluate(this.T, 2).loss })
      this.model.Omega.value.set(learned)
    }
    return losses
  }
}

// In a worker: the page asks for a method of the run by its name, and gets its result.
if (typeof WorkerGlobalScope !== 'undefined') {
  let run = null
  globalThis.onmessage = ({ data: [name, ...given] }) => {
    if (name === 'begin') run = new Run(...given)
    postMessage(name === 'begin' ? run.look() : run[name](...given))
  }
}
