"""`autotm.compile`: what PyTorch computes, with loops and branches in one function; what it refuses, and where."""

import copy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="it compiles modules of PyTorch: make test-torch installs it")

from random_loops import SIZE, RandomLoops  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import autotm  # noqa: E402
from autotm.model.errors import AutotmError, BadInputError  # noqa: E402
from autotm.zoo.torch import recurrent  # noqa: E402


def module(forward, **parts):
    """Return a module of these parts whose forward pass is a function of it and the inputs."""

    class Own(nn.Module):
        def forward(self, *inputs):
            return forward(self, *inputs)

    torch.manual_seed(0)
    own = Own()
    for name, part in parts.items():
        setattr(own, name, part())
    return own.eval()


def require_equal(compiled, reference, *inputs, relative=1e-5):
    """Fail unless a compiled module returns what the module does, nested alike."""
    with torch.no_grad():
        expected = reference(*inputs)
    for result in (compiled(*inputs), compiled(*inputs)):  # Nothing of a call is left to the next one.
        torch.testing.assert_close(result, expected, rtol=relative, atol=relative / 10)


LINEAR = {"linear": lambda: nn.Linear(SIZE, SIZE)}


def scanned(self, rows, state):
    def step(state, row):
        state = torch.tanh(self.linear(state) + row)
        return state, (2 * state, state.sum())

    return scan(step, state, rows)


def halved(self, x):
    """Branches in a while loop whose end depends on its data."""

    def test(x, count):
        return (x.abs().sum() > 1) & (count < 100)

    def body(x, count):
        return torch.cond(x.sum() > 0, lambda x: x / 2 - 0.1, lambda x: self.linear(x) / 4, (x,)), count + 1

    return while_loop(test, body, (x, torch.tensor(0)))


def nested(self, rows, state):
    """A while loop in each step of a scan, from the last row to the first."""

    def step(state, row):
        state, _ = while_loop(
            lambda state, count: (state.abs().max() > 0.5) & (count < 4),
            lambda state, count: (self.linear(state) / 2, count + 1),
            (state + row, torch.tensor(0)),
        )
        return state, state * row

    return scan(step, state, rows, reverse=True)


def decoded(self, tokens, state):
    """A greedy decoder: the index of a row is computed in the loop."""

    def body(tokens, state, count):
        state = self.cell(self.table(tokens), state)
        return self.out(state).argmax(-1), state, count + 1

    return while_loop(
        lambda tokens, _, count: (tokens != 0).any() & (count < 20), body, (tokens, state, torch.tensor(0))
    )


def chained(self, rows, state):
    """The rows that one scan makes are all that the next one reads, from the last one on."""

    def step(h, x):
        h = torch.tanh(self.linear(x) + h)
        return h, h.clone()

    last, rows = scan(step, state, rows)
    return scan(step, last, rows, reverse=True)


DECODER = {
    "table": lambda: nn.Embedding(11, SIZE),
    "cell": lambda: nn.GRUCell(SIZE, SIZE),
    "out": lambda: nn.Linear(SIZE, 11),
}
ROWS = lambda: (torch.randn(5, SIZE), torch.randn(SIZE))  # noqa: E731
CASES = {
    "scan": (lambda: module(scanned, **LINEAR), ROWS),
    "scans one after the other": (lambda: module(chained, **LINEAR), ROWS),
    "branches in a while loop": (lambda: module(halved, **LINEAR), lambda: (torch.randn(SIZE),)),
    "a while loop in a scan": (lambda: module(nested, **LINEAR), ROWS),
    "decoder": (lambda: module(decoded, **DECODER), lambda: (torch.randint(0, 11, (3,)), torch.randn(3, SIZE))),
    "LSTM": (lambda: nn.LSTM(SIZE, 6, 2), lambda: (torch.randn(7, 3, SIZE),)),
    "LSTM with projections": (
        lambda: nn.LSTM(SIZE, 6, 2, batch_first=True, bidirectional=True, proj_size=3),
        lambda: (torch.randn(3, 7, SIZE), (torch.randn(4, 3, 3), torch.randn(4, 3, 6))),
    ),
    "GRU": (lambda: nn.GRU(SIZE, 6, bidirectional=True), lambda: (torch.randn(7, 3, SIZE),)),
    "GRU without biases or batch": (lambda: nn.GRU(SIZE, 6, bias=False), lambda: (torch.randn(7, SIZE),)),
    "RNN": (lambda: nn.RNN(SIZE, 6, 2, nonlinearity="relu", dropout=0.5), lambda: (torch.randn(7, 3, SIZE),)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_module_computes_what_pytorch_does(name):
    build, inputs = CASES[name]
    torch.manual_seed(1)
    reference = build().eval()
    compiled = autotm.compile(reference, inputs())
    for _ in range(3):
        require_equal(compiled, reference, *inputs())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, *range(2, 40)))])
def test_random_modules(seed):
    torch.manual_seed(seed)
    reference, (x, y) = RandomLoops(seed), torch.randn(2, 2, SIZE)
    with torch.no_grad():
        reference(x, y)  # What PyTorch has compiled by itself before must not matter.
    compiled = autotm.compile(reference, (x, y))
    for _ in range(2):
        require_equal(compiled, reference, *torch.randn(2, 2, SIZE), relative=1e-4)  # Loops multiply roundings.


def test_the_examples_of_the_documents(capsys):
    page = (Path(__file__).parents[1] / "docs" / "control-flow.md").read_text()
    names = {}
    torch.manual_seed(0)
    for part in page.split("```python")[1:]:
        exec(part.split("```")[0], names)
    assert "loop while_loop_1" in capsys.readouterr().out
    assert 1 <= int(names["count"]) <= 50
    assert [tuple(names[name].shape) for name in "hc"] == [(1, 256), (1, 256)]
    assert 6 < names["loss"] < 8, "the logarithm of 1000 words"


def test_arrays_come_back_as_arrays():
    layer = nn.GRU(SIZE, 6)
    compiled = autotm.compile(layer, torch.zeros(4, 2, SIZE))
    values = torch.randn(4, 2, SIZE)
    output, last = compiled(values.numpy())
    assert isinstance(output, np.ndarray)
    np.testing.assert_array_equal(output, compiled(values)[0].numpy())
    assert last.shape == (1, 2, 6)


def test_it_tells_what_became_a_loop_and_from_which_line():
    text = str(autotm.compile(module(halved, **LINEAR), torch.ones(SIZE)))
    assert "loop while_loop_1" in text
    assert "return while_loop(test, body, (x, torch.tensor(0)))" in text
    steps = 10_000
    text = str(autotm.compile(nn.GRU(SIZE, 6), torch.zeros(steps, SIZE)))
    assert f"{steps // 2} times" in text, "two steps each time"


def test_an_index_out_of_range_is_an_error_with_its_line():
    reference = module(decoded, **DECODER)
    compiled = autotm.compile(reference, (torch.zeros(3, dtype=torch.int64), torch.zeros(3, SIZE)))
    with pytest.raises(AutotmError, match=r"self\.table\(tokens\).*an index is out of range: it takes 0 to 10"):
        compiled(torch.tensor([1, 11, 2]), torch.zeros(3, SIZE))
    require_equal(compiled, reference, torch.tensor([1, 10, 2]), torch.randn(3, SIZE))


def test_a_loop_without_end_is_an_error():
    endless = module(lambda _, x: while_loop(lambda x: x.sum() > 0, lambda x: (x + 1,), (x,)))
    compiled = autotm.compile(endless, torch.ones(3), max_steps=50)
    with pytest.raises(AutotmError, match="loop 'while_loop_1' is not done after 50 steps"):
        compiled(torch.ones(3))
    with pytest.raises(AutotmError, match="a condition compares NaN"):
        compiled(torch.full((3,), torch.nan))


def test_a_buffer_that_forward_changes_is_refused():
    def forward(self, x):
        self.seen.add_(x)
        return self.seen * 2

    counting = module(forward)
    counting.register_buffer("seen", torch.zeros(3))
    with pytest.raises(BadInputError, match=r"self\.seen\.add_\(x\): forward changes the buffer seen"):
        autotm.compile(counting, torch.ones(3))


def test_an_operator_without_a_kernel_is_refused_with_its_line():
    inside = module(
        lambda _, x: torch.cond(x.sum() > 0, lambda x: 1 + torch.special.bessel_j0(x), lambda x: x + 1, (x,))
    )
    with pytest.raises(BadInputError, match=r"torch\.special\.bessel_j0\(x\).*cannot be imported here"):
        autotm.compile(inside, torch.eye(3))


def test_powers_of_whole_numbers():
    powers = module(lambda _, x, n: (x * 2**n, n**2, n**3, torch.pow(n, n)))
    compiled = autotm.compile(powers, (torch.ones(3), torch.tensor([1, 2, 3])))
    x, n = torch.randn(3), torch.tensor([0, 7, 12])
    for own, right in zip(compiled(x, n), powers(x, n), strict=True):
        assert own.dtype == right.dtype
        assert (own == right).all()


def test_random_numbers_are_refused_with_their_line():
    with pytest.raises(BadInputError, match=r"dropout\(x\).*: it draws random numbers"):
        autotm.compile(module(lambda _, x: nn.functional.dropout(x)), torch.ones(3))


def test_sides_of_other_shapes_are_refused():
    sides = module(lambda _, x: torch.cond(x.sum() > 0, lambda x: x[:1].clone(), lambda x: x + 1, (x,)))
    with pytest.raises(BadInputError, match=r"torch\.cond\(.*differs between the sides of a branch"):
        autotm.compile(sides, torch.ones(3))


def test_other_arguments_than_it_was_compiled_for_are_refused():
    compiled = autotm.compile(nn.GRU(SIZE, 6), {"input": torch.zeros(4, 2, SIZE)})
    with pytest.raises(BadInputError, match=r"compiled for arguments \(input\), called with others"):
        compiled(torch.zeros(4, 2, SIZE))
    with pytest.raises(BadInputError, match=r"\('input'\) is \(5, 2, 8\) float32, not \(4, 2, 8\) float32"):
        compiled(input=torch.zeros(5, 2, SIZE))
    with pytest.raises(BadInputError, match="argument input is a str"):
        compiled(input="x")
    with pytest.raises(BadInputError, match=r"no torch\.nn\.Module"):
        autotm.compile(torch.tanh, torch.zeros(3))


# Training steps.


class Language(nn.Module):
    """Predicts words from those before; further arguments are those of the layer."""

    def __init__(self, kind, words=11, **layer):
        super().__init__()
        self.table, self.layer = nn.Embedding(words, SIZE), kind(SIZE, 6, 2, **layer)
        self.out = nn.Linear((self.layer.proj_size or 6) * (2 if self.layer.bidirectional else 1), words)

    def forward(self, words):
        return self.out(self.layer(self.table(words))[0]).flatten(0, 1)


LANGUAGES = {
    "LSTM": lambda: Language(nn.LSTM),
    "LSTM, both ways": lambda: Language(nn.LSTM, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda: Language(nn.LSTM, proj_size=3),
    "GRU": lambda: Language(nn.GRU),
    "GRU without biases": lambda: Language(nn.GRU, bias=False),
    "RNN": lambda: Language(nn.RNN),
    "RNN of maxima": lambda: Language(nn.RNN, nonlinearity="relu", batch_first=True),
}


def words(*shape):
    return torch.randint(0, 11, shape)


def gradients(model, x, y):
    """Return the loss and its gradients as PyTorch computes them."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LANGUAGES)
def test_gradients_are_as_exact_as_pytorchs(name):
    torch.manual_seed(2)
    model, x, y = LANGUAGES[name](), words(7, 3), words(21)
    step = autotm.compile(model, x, loss=nn.functional.cross_entropy, targets=(y,), mode="train")
    for _ in range(2):
        x, y = words(7, 3), words(21)
        exact = gradients(copy.deepcopy(model).double(), x, y)
        theirs = gradients(model, x, y)
        model.zero_grad()
        ours = [step(x, y), *(parameter.grad for parameter in model.parameters())]
        for right, own, other in zip(exact, ours, theirs, strict=True):
            scale = right.abs().max()
            assert (own - right).abs().max() <= 3 * (other - right).abs().max() + 2e-7 * scale
        with torch.no_grad():
            for parameter in model.parameters():  # The step reads the parameters as they are now.
                parameter.sub_(parameter.grad)


def looped(step, state, rows, reverse=False):
    """Compute what `scan` does with a loop of Python, of which PyTorch has a gradient."""
    results = []
    for row in rows.flip(0) if reverse else rows:
        state, result = step(state, row)
        results.append(result)
    return state, torch.stack(results[::-1] if reverse else results)


def recurrence(self, rows, state, scan=scan):
    def step(h, x):
        h = torch.tanh(self.linear(x) + self.linear(h))
        return h, (h * x).clone()

    last, rows = scan(step, state, rows)
    return last.sum() + rows.square().sum()


def both_ways(self, rows, state, scan=scan):
    """A second scan, from the last row on, begins with the state of the first, and nothing else reads its rows."""

    def step(h, x):
        h = torch.tanh(self.linear(x) + h)
        return h, h.clone()

    last, rows = scan(step, state, rows)
    return scan(step, last, rows, reverse=True)[1].square().sum()


def counted(self, rows, state, scan=scan):
    """A counter is part of the state, and has no gradient; the rows that come out are not used."""

    def step(states, x):
        count, h = states
        h = h + self.linear(x * (count + 1)).sigmoid() / 2**count
        return (count + 1, h.clone()), h.clone()

    return scan(step, (torch.tensor(0), state), rows)[0][1].sum()


@pytest.mark.parametrize("forward", [recurrence, both_ways, counted])
def test_gradients_of_scans_are_as_exact_as_pytorchs_of_python(forward):
    torch.manual_seed(5)
    model, inputs = module(forward, **LINEAR), (torch.randn(6, 3, SIZE), torch.randn(3, SIZE))
    step = autotm.compile(model, inputs, mode="train")

    def theirs(model, inputs):
        model.zero_grad()
        loss = forward(model, *inputs, scan=looped)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    exact = theirs(copy.deepcopy(model).double(), [each.double() for each in inputs])
    others = theirs(model, inputs)
    for _ in range(2):
        model.zero_grad()
        ours = [step(*inputs).detach(), *(parameter.grad for parameter in model.parameters())]
        for right, own, other in zip(exact, ours, others, strict=True):
            assert (own - right).abs().max() <= 3 * (other - right).abs().max() + 2e-7 * right.abs().max()


def test_products_are_kept_or_computed_again(monkeypatch):
    model, x, y = LANGUAGES["LSTM"](), words(7, 3), words(21)
    results, workspaces = [], []
    for most in (1 << 20, 0):
        monkeypatch.setattr(recurrent, "_KEPT_BYTES", most)
        step = autotm.compile(model, x, loss=nn.functional.cross_entropy, targets=(y,), mode="train")
        model.zero_grad()
        results.append([step(x, y), *(parameter.grad for parameter in model.parameters())])
        workspaces.append(step.function.workspace_bytes)
    for kept, again in zip(*results, strict=True):
        torch.testing.assert_close(kept, again, rtol=1e-5, atol=1e-6)
    assert workspaces[0] != workspaces[1]


def test_gradients_add_up():
    model, x, y = LANGUAGES["GRU"](), words(7, 3), words(21)
    step = autotm.compile(model, x, loss=nn.functional.cross_entropy, targets=(y,), mode="train")
    step(x, y)
    once = [parameter.grad.clone() for parameter in model.parameters()]
    step(x, y)
    for parameter, gradient in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient)


def test_a_step_of_ten_thousand_steps_is_as_large_as_one_of_ten():
    step, longer = (
        autotm.compile(nn.GRU(SIZE, 6), torch.zeros(steps, SIZE), loss=lambda out: out[0].sum(), mode="train")
        for steps in (10, 10_000)
    )
    assert [part.kernels for part in longer.function.parts] == [part.kernels for part in step.function.parts]


def test_what_no_step_can_train_is_refused():
    ends = module(lambda self, x: while_loop(lambda x: x.sum() > 1, lambda x: (self.linear(x) / 2,), (x,))[0], **LINEAR)
    with pytest.raises(BadInputError, match=r"while_loop\(.*on the number of steps where"):
        autotm.compile(ends, torch.ones(SIZE), loss=torch.sum, mode="train")
    inner = lambda h, x: (torch.cond(x.sum() > 0, torch.sin, torch.cos, (h + x,)), x.clone())  # noqa: E731
    branching = module(lambda self, x: scan(inner, self.linear(x[0]), x)[0], **LINEAR)
    with pytest.raises(BadInputError, match=r"scan\(inner, .*: a step holds a loop or a branch, through which no"):
        autotm.compile(branching, torch.ones(3, SIZE), loss=torch.sum, mode="train")
    drops = module(lambda self, x: nn.functional.dropout(self.linear(x)), **LINEAR)
    with pytest.raises(BadInputError, match=r"dropout\(.*: it draws random numbers"):
        autotm.compile(drops, torch.ones(SIZE), loss=torch.sum, mode="train")
    with pytest.raises(BadInputError, match="a loss and targets are for mode='train'"):
        autotm.compile(nn.GRU(SIZE, 6), torch.ones(3, SIZE), loss=torch.sum)
