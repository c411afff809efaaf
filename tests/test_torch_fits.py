"""What memory a step needs, predicted without memory, beside what PyTorch's allocator was asked for."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

import autotm
from autotm.cli.main import main
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.step_memory import Cause, Phase

torch = pytest.importorskip("torch")
from autotm.memory.torch_device import device_of  # noqa: E402
from autotm.memory.torch_step import step_memory, workspace_bytes  # noqa: E402

nn, cross_entropy, checkpoint = torch.nn, torch.nn.functional.cross_entropy, torch.utils.checkpoint.checkpoint


def convolutions():
    layers = [
        (nn.Conv2d(32 if at else 3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=bool(at % 2)))
        for at in range(4)
    ]
    return nn.Sequential(*(one for layer in layers for one in layer), nn.Flatten(), nn.Linear(32 * 32 * 32, 10))


class Attention(nn.Module):
    """Two layers of a transformer, checkpointed or not, over classes."""

    def __init__(self, *, is_checkpointed=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(3))
        self.classes = nn.Linear(32, 10)
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return self.classes(x.mean(1))


def depthwise():
    """Return convolutions whose gradients take many times a weight while they are computed."""
    layers = (nn.Conv2d(64, 64, 7, padding=3, groups=64), nn.GELU(), nn.Conv2d(64, 64, 2, 2), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10)).to(memory_format=torch.channels_last)


CASES = {
    "convolutions": (convolutions, (8, 3, 32, 32)),
    "depthwise": (depthwise, (8, 64, 8, 8)),
    "attention": (Attention, (8, 64, 32)),
    "checkpointed": (lambda: Attention(is_checkpointed=True), (8, 64, 32)),
}
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
}


def measured_bytes(module, optimizer, x, target):
    """Return the most bytes that two steps had, by the calls of PyTorch's allocator."""
    tensors = [*module.parameters(), *module.buffers(), x, target]
    now, peaks = sum(tensor.untyped_storage().nbytes() for tensor in tensors), []
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            module.zero_grad(set_to_none=True)
            loss = cross_entropy(module(x), target)
            loss.backward()
            optimizer.step()
            del loss
        events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
        peak = now
        for event in sorted(events, key=lambda one: one.start_ns()):
            now += event.nbytes()
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_peaks_are_those_that_are_measured(name, kind):
    make, shape = CASES[name]
    module, x = make(), torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if name == "depthwise" else x
    target = torch.zeros(8, dtype=torch.long)
    optimizer = OPTIMIZERS[kind](module.parameters())
    found = autotm.fits(module, x, cross_entropy, optimizer, targets=(target,))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in module.parameters())
    first, steady = measured_bytes(module, optimizer, x, target)
    assert found.first.size_bytes == pytest.approx(first, rel=0.03)
    assert found.steady.size_bytes == pytest.approx(steady, rel=0.03)


def test_bytes_are_told_by_cause():
    module, x = nn.Linear(1000, 500, bias=False), torch.randn(10, 1000)
    found = autotm.fits(module, x, lambda y: y.square().mean(), torch.optim.Adam)
    parameters = 4 * 1000 * 500
    by_cause = found.peak.by_cause
    assert by_cause[Cause.PARAMETERS] == by_cause[Cause.GRADIENTS] == parameters
    assert by_cause[Cause.OPTIMIZER] >= 2 * parameters
    assert by_cause[Cause.BATCH] == 4 * 10 * 1000
    assert sum(by_cause.values()) == found.peak.size_bytes
    assert (found.parameters, found.peak.phase) == (1000 * 500, Phase.OPTIMIZER)
    assert found.resting_bytes >= 4 * parameters
    without = autotm.fits(module, x, lambda y: y.square().mean())
    assert without.peak.by_cause[Cause.OPTIMIZER] == 0
    assert without.optimizer == ""


def test_checkpoints_keep_less_and_modules_say_where():
    plain, saving = (
        autotm.fits(Attention(is_checkpointed=own), torch.randn(8, 64, 32), lambda y: y.square().mean())
        for own in (False, True)
    )
    kept = {one.name: one.kept_bytes for one in plain.modules}
    assert kept["layers.0"] == kept["layers.1"] > 0
    assert kept[""] >= kept["layers.0"] + kept["layers.1"]
    assert {one.name: one.kept_bytes for one in saving.modules}["layers.0"] < kept["layers.0"] / 2
    assert saving.peak.size_bytes < plain.peak.size_bytes
    assert "layers.* (3 TransformerEncoderLayer): " in str(plain)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="other layouts without AVX-512")
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("read", "written", "groups", "side", "stride"),
    [(64, 64, 1, 3, 1), (64, 128, 1, 3, 2), (64, 64, 16, 3, 1), (64, 64, 64, 7, 1), (64, 64, 64, 3, 1)],
)
def test_workspaces_of_convolutions_are_those_that_are_measured(read, written, groups, side, stride, layout):
    """They lack no more than a twentieth of what the convolution holds, and are too large by one operand at most."""
    x = torch.randn(4, read, 14, 14).to(memory_format=layout)
    weight = torch.randn(written, read // groups, side, side)
    options = ([stride] * 2, [side // 2] * 2, [1, 1], False, [0, 0], groups)
    forward, backward = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
    gradient = torch.randn_like(forward(x, weight, None, *options))
    for function, args in (
        (forward, (x, weight, None, *options)),
        (backward, (gradient, x, weight, None, *options, [True, True, False])),
    ):
        results, peak_bytes = device_of(x.device).peak(partial(function, *args))
        given = results if isinstance(results, tuple) else (results,)
        made = sum(one.untyped_storage().nbytes() for one in given if one is not None)
        held = 4 * (x.numel() + weight.numel() + gradient.numel())
        assert -0.05 * held <= workspace_bytes(function, args) - (peak_bytes - made) <= 4 * x.numel()


class Traced(nn.Linear):
    """Looks at values unless it is told that it is traced."""

    def forward(self, x):
        return super().forward(x) if torch.compiler.is_compiling() or x.sum().item() else x


def test_what_a_library_computes_where_it_is_traced_is_taken_if_the_step_cannot_be(capfd):
    found = autotm.fits(Traced(3, 3), torch.zeros(2, 3), lambda y: y.sum())
    assert found.peak.size_bytes == autotm.fits(nn.Linear(3, 3), torch.zeros(2, 3), lambda y: y.sum()).peak.size_bytes
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("name", "kind"), [("convolutions", None), ("attention", None), ("attention", "AdamW")])
def test_the_least_is_what_a_plan_needs_but_for_workspaces(name, kind):
    make, shape = CASES[name]
    module, x, target = make(), torch.randn(shape), torch.zeros(8, dtype=torch.long)
    optimizer = None if kind is None else getattr(torch.optim, kind)(module.parameters())
    found = autotm.fits(module, x, cross_entropy, optimizer, budget=1000, targets=(target,))
    with pytest.raises(InfeasibleLimitError) as error:
        autotm.offload(module, x, cross_entropy, 1, targets=(target,), optimizer=optimizer, kernel_s=1e-4)
    assert found.least.size_bytes <= error.value.smallest_bytes < 1.5 * found.least.size_bytes
    assert found.least.size_bytes < found.peak.size_bytes
    assert "autotm.offload cannot keep it either" in str(found)
    between = autotm.fits(module, x, cross_entropy, optimizer, found.peak.size_bytes - 1, targets=(target,))
    assert "1 B are missing; autotm.offload may keep it" in str(between)


class OwnAdam(torch.optim.Adam):
    """Not known to update each parameter by itself."""


def test_an_optimizer_adds_its_state_and_its_update():
    module, x = nn.Sequential(nn.Linear(1000, 500), nn.Linear(500, 1000)), torch.randn(10, 1000)
    plain, known, other = (
        autotm.fits(module, x, lambda y: y.mean(), own).least for own in (None, torch.optim.Adam, OwnAdam)
    )
    weights_bytes = 2 * 4 * 1000 * 500
    assert plain.where == "the gradients and the loss"
    assert plain.size_bytes < known.size_bytes < plain.size_bytes + 0.6 * weights_bytes  # a layer's state, one gradient
    assert other.where == "the update by the optimizer"
    assert other.size_bytes >= plain.size_bytes + 2 * weights_bytes


def test_a_module_that_no_computer_could_hold_is_answered():
    def module():
        return nn.Sequential(nn.Linear(300_000, 300_000), nn.ReLU(), nn.Linear(300_000, 1))

    found = autotm.fits(module, torch.zeros(1, 300_000), lambda y: y.sum(), torch.optim.AdamW, "80GB")
    assert found.parameters > 9e10
    assert found.fits is False
    assert "budget 80 GB: it does not fit" in str(found)


class Tied(nn.Module):
    """Words are read, and predicted, by the same weights; beside them a recurrent layer, whose weights have names."""

    def __init__(self, dtype=None):
        super().__init__()
        options = {"dtype": dtype}
        self.read, self.layer = nn.Embedding(50, 16, **options), nn.LSTM(16, 16, batch_first=True, **options)
        self.predict = nn.Linear(16, 50, bias=False, **options)
        self.predict.weight = self.read.weight
        self.register_buffer("scale", torch.ones(1, **options))

    def forward(self, words):
        return self.predict(self.scale * self.layer(self.read(words))[0])


def test_a_function_may_convert_the_module_that_it_makes():
    step = torch.zeros(2, 5, dtype=torch.int64), lambda y: y.float().mean(), torch.optim.AdamW
    halved, made = (autotm.fits(make, *step) for make in (lambda: Tied().half(), lambda: Tied(torch.float16)))
    assert halved.parameters == made.parameters
    assert halved.peak == made.peak != autotm.fits(Tied, *step).peak


def test_layers_whose_memory_is_not_told_are_named():
    module = nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 16))
    found = autotm.fits(module, torch.zeros(5, 2, 8), lambda y: y[0].sum())
    assert found.untold == ("1",)
    assert "1: what these recurrent layers keep is not told by PyTorch" in str(found)
    assert not autotm.fits(nn.Linear(3, 3), torch.zeros(2, 3), lambda y: y.sum()).untold


def test_a_budget_is_held_against_the_larger_peak():
    module, x = nn.Linear(10, 10), torch.zeros(1, 10)
    peak = autotm.fits(module, x, lambda y: y.sum(), torch.optim.AdamW).peak.size_bytes
    assert autotm.fits(module, x, lambda y: y.sum(), torch.optim.AdamW, float(peak)).fits is True
    assert autotm.fits(module, x, lambda y: y.sum(), torch.optim.AdamW, float(peak - 1)).fits is False


class Scaled(nn.Linear):
    def forward(self, x, scale, more):
        return super().forward(x) * scale + more["shift"]


def test_inputs_may_be_numbers_and_mappings():
    inputs = (torch.zeros(2, 3), 2.0, {"shift": torch.zeros(3)})
    found = autotm.fits(Scaled(3, 3), inputs, lambda y: y.sum())
    assert found.peak.by_cause[Cause.BATCH] == 4 * (2 * 3 + 3)
    assert found.least.size_bytes is None
    assert "autotm.offload cannot move tensors of this step to the host: its inputs are not all tensors" in str(found)


FILE = """
from torch import nn, optim, zeros


def linear():
    module = nn.Linear(200_000, 200_000)  # 160 GB, which nothing holds
    return {"module": module, "inputs": zeros(1, 200_000), "loss": lambda y: y.sum(), "optimizer": optim.AdamW}


def bound():
    module = nn.Linear(20, 20)
    optimizer = optim.Adam(module.parameters())
    return {"module": module, "inputs": zeros(1, 20), "loss": lambda y: y.sum(), "optimizer": optimizer}


def number():
    return 3


def unknown():
    return {"module": nn.Linear(2, 2), "inputs": zeros(1, 2), "optimiser": optim.AdamW}


def raising():
    raise ValueError("no such size")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_a_function_of_a_file_is_answered_on_the_command_line(file, capsys):
    assert main(["fits", f"{file}:linear", "--budget", "80GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 200_000**2 + 200_000
    assert found["first"]["by_cause"]["gradients"] == 4 * found["parameters"]
    assert main(["fits", f"{file}:bound", "--device", "h200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["times"][0]["least_s"] > 0
    assert main(["fits", f"{file}:bound"]) == 0
    assert "Linear, 0.00042 million parameters, trained by Adam: needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "number returned a int; it has to return a dict"),
        ("unknown", "unknown returned a dict of module, inputs, optimiser"),
        ("raising", "raising raised ValueError: no such size"),
        ("linaer", "did you mean 'linear'"),
    ],
)
def test_functions_that_describe_no_step_are_named(name, message, file, caplog):
    assert main(["fits", f"{file}:{name}"]) == 1
    assert message in caplog.text
    assert main(["fits", f"{file.with_name('away.py')}:{name}"]) == 1
    assert "away.py: no such file" in caplog.text


class Deciding(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum().item() > 0 else -y


def test_times_on_a_gpu_are_those_of_its_rates():
    side = 4096
    x = torch.zeros(side, side)
    found = autotm.fits(lambda: nn.Linear(side, side, bias=False), x, lambda y: y.square().mean(), device="h200")
    assert found.device.startswith("NVIDIA H200")
    assert found.fits
    kept, *planned = found.times
    # Two products of float32 take 66.9e12 operations a second; ten passes or less over a matrix 4.8e12 bytes a second.
    products_s = 2 * 2 * side**3 / 66.9e12
    assert products_s < kept.least_s < products_s + 10 * 4 * side**2 / 4.8e12 + 1e-4
    assert kept.least_s < kept.most_s <= kept.least_s / 0.4
    for one in planned:
        assert one.budget_bytes >= found.least.size_bytes
        assert kept.least_s <= one.least_s <= one.most_s
        assert one.moved_bytes or one.recomputed or one.least_s == pytest.approx(kept.least_s, rel=1e-4)


def test_copies_of_an_optimizers_state_overlap_operators():
    side, layers = 4096, 12

    def module():
        return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(side, side, bias=False), nn.Tanh())))

    step = module, torch.zeros(2 * side, side), torch.sum, torch.optim.AdamW
    kept, planned = autotm.fits(*step, int(1.3 * autotm.fits(*step).least.size_bytes), device="h200").times
    state_bytes = 2 * 4 * layers * side**2
    assert planned.moved_bytes > state_bytes
    # The link takes 50e9 bytes a second in each direction.
    assert 2 * state_bytes / 50e9 > 0.4 * kept.least_s
    assert planned.least_s < 1.05 * kept.least_s


def test_products_of_halves_have_a_rate_of_their_own():
    def least_s(dtype):
        module, x = nn.Linear(4096, 4096, bias=False, dtype=dtype), torch.zeros(4096, 4096, dtype=dtype)
        return autotm.fits(module, x, lambda y: y.square().mean(), device="h200").times[0].least_s

    assert least_s(torch.bfloat16) < least_s(torch.float32) / 5


def test_what_operators_take_on_a_cpu_does_not_count_on_a_gpu():
    def workspaces(**options):
        x = torch.zeros(8, 64, 8, 8).to(memory_format=torch.channels_last)
        found = autotm.fits(depthwise(), x, lambda y: y.square().mean(), **options)
        return found.peak.by_cause[Cause.WORKSPACES]

    assert workspaces(device="h200") == 0 < workspaces()


class Attending(nn.Module):
    """Attention with dropout between words, by heads of a width; the mask forbids later words.

    If it is shared, all heads read the keys and values of the first.
    """

    def __init__(self, width=16, *, masked=None, dtype=None, is_shared=False):
        super().__init__()
        self.line, self.width, self.read = nn.Linear(64, 3 * 8 * width, dtype=dtype), width, 1 if is_shared else 8
        self.register_buffer("mask", masked)

    def forward(self, x):
        query, key, value = self.line(x).unflatten(-1, (3, 8, self.width)).permute(2, 0, 3, 1, 4)
        is_causal = self.mask is None
        key, value = key[:, : self.read], value[:, : self.read]
        kept = nn.functional.scaled_dot_product_attention(query, key, value, self.mask, 0.1, is_causal)
        return kept.float().square().mean()


WORDS = 256


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        ("_scaled_dot_product_efficient_attention", {}),
        ("_scaled_dot_product_flash_attention", {"dtype": torch.bfloat16}),
        (
            "_scaled_dot_product_efficient_attention",
            {"dtype": torch.bfloat16, "masked": torch.ones(WORDS, WORDS).tril() > 0},
        ),
        ("bmm", {"width": 13}),  # No multiple of 16 bytes.
        ("bmm", {"dtype": torch.bfloat16, "is_shared": True}),
    ],
)
def test_attention_on_a_gpu_is_that_of_its_operators(operator, options):
    pairs_bytes = 4 * 8 * WORDS**2 * options.get("dtype", torch.float32).itemsize
    batch = (torch.zeros(4, WORDS, 64, dtype=options.get("dtype")),)
    memory, step = step_memory(Attending(**options), batch, None, None, (), None, on_gpu=True)
    names = {own.node.target._overloadpacket.__name__ for own in step.operators}
    assert {name for name in names if name == "bmm" or name.endswith("_attention")} == {operator}
    assert (memory.peak.by_cause[Cause.ACTIVATIONS] > pairs_bytes) == (operator == "bmm")


def test_a_plan_within_a_budget_is_timed_and_none_where_the_step_fits():
    layers = (part for _ in range(8) for part in (nn.Linear(512, 512), nn.Tanh()))
    given = nn.Sequential(*layers), torch.randn(8192, 512), lambda y: y.square().mean()
    options = {"device": "rtx-2080-ti"}
    need = autotm.fits(*given, **options, budget="1GB")
    assert need.fits
    assert [one.budget_bytes for one in need.times] == [None]
    budget_bytes = int(0.7 * need.peak.size_bytes)
    tight = autotm.fits(*given, **options, budget=budget_bytes)
    assert [one.budget_bytes for one in tight.times] == [None, budget_bytes]
    assert tight.times[1].moved_bytes or tight.times[1].recomputed
    assert tight.times[1].least_s >= tight.times[0].least_s
    assert "% more: " in str(tight)


def test_a_page_shows_the_plan_within_the_budget(tmp_path):
    def shown(budget):
        page = tmp_path / "step.html"
        module, optimizer = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), torch.optim.AdamW
        found = autotm.fits(
            lambda: module, torch.zeros(64, 512), torch.sum, optimizer, budget, device="h200", page=page
        )
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
        return found, json.loads(data)

    found, kept = shown("1GB")
    assert kept["limit_bytes"] == found.budget_bytes > found.peak.size_bytes
    assert kept["moves"]["tensor"] == []
    tight, moved = shown(int(0.8 * kept["pool_bytes"][0]))
    assert moved["limit_bytes"] == tight.budget_bytes
    assert moved["pool_bytes"][0] <= tight.budget_bytes < kept["pool_bytes"][0]
    assert len(moved["moves"]["tensor"]) >= 2
    assert "MODELLED" in moved["provenance"][0]["value"]


def test_there_is_no_page_without_a_plan(tmp_path):
    def ask(*budget, module=nn.Linear, **device):
        made = partial(module, 8, 8)
        autotm.fits(made, torch.zeros(2, 8), torch.sum, torch.optim.SGD, *budget, page=tmp_path / "step.html", **device)

    with pytest.raises(BadInputError, match="give one, such as h200"):
        ask()
    with pytest.raises(BadInputError, match=r"no page: a budget of 500 bytes is too small: .* needs \d+ bytes"):
        ask("500B", device="h200")
    assert not [*tmp_path.iterdir()]


def test_gpus_that_are_not_known_are_named_before_anything_runs():
    with pytest.raises(BadInputError, match=r"no such GPU file.*h200"):
        autotm.fits(None, None, device="h100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "much"}, "'much' is no budget; give bytes, as 8GB"),
        ({"budget": "0.5x"}, "'0.5x' is no budget"),
        ({"module": Deciding(3, 3)}, r"test_torch_fits.py:\d+: the step depends on the value of a tensor"),
        ({"module": lambda: 1 / 0}, "the function of the module raised ZeroDivisionError"),
        ({"module": lambda: 3}, "the function of the module returned a int, not a module"),
        ({"loss": lambda y: y}, r"the loss is a tensor of shape \(2, 3\)"),
        ({"optimizer": lambda _: 3}, "the function of the optimizer returned a int"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS calls the step as often as it likes"),
        ({"optimizer": torch.optim.SGD(nn.Linear(4, 5).parameters(), 0.1)}, r"shape \(5, 4\) that the module has not"),
        ({"inputs": torch.zeros(2, 7)}, "the step ends with RuntimeError"),
    ],
)
def test_what_cannot_be_answered_is_said(arguments, message):
    given = {"module": nn.Linear(3, 3), "inputs": torch.zeros(2, 3), "loss": lambda y: y.sum()} | arguments
    with pytest.raises(BadInputError, match=f"fits: .*{message}"):
        autotm.fits(given.pop("module"), given.pop("inputs"), **given)
