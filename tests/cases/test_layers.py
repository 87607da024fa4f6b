"""The layers of each script: their names, and the phases in which they have times."""

import shutil

import pytest

EVERYTHING = frozenset({"forward", "backward", "update"})
FORWARD = frozenset({"forward"})

NAMES = {
    "accelerated": ["0", "2"],
    "accumulation": ["0", "2"],
    "average_kept": ["0", "2"],
    "checkpointed": [
        "stem",
        *(f"blocks.{number}.{part}" for number in range(3) for part in ("up", "down")),
        "head",
    ],
    "custom_function": ["0", "2", "3"],
    "data_parallel": ["module.0", "module.2"],
    "endless_loader": ["0", "2"],
    "evaluated_inside": ["0", "2"],
    "extra_batch": ["0", "2"],
    "fetch_before_backward": ["body.0", "body.2"],
    "generator": ["0", "2"],
    "gradient_penalty": ["0", "2"],
    "graphs": ["first.lin", "second.lin", "head"],
    "keyword_names": ["body"],
    "lazy_layers": ["0", "2"],
    "lbfgs": ["0", "2"],
    "lightning_module": ["net.0", "net.2"],
    "mixed_precision": ["0", "2"],
    "no_eval": ["0", "2"],
    "odd_outputs": ["encoder.first", "blocks.blocks.0", "blocks.blocks.1", "head.last"],
    "old_weight_norm": ["0", "2"],
    "own_profiler": ["0", "2"],
    "parametrized": ["0", "2", "4", "5"],
    "policy_methods": ["trunk", "policy", "value"],
    "prefetch": ["0", "2"],
    "quantization_aware": ["a", "b"],
    "reinforcement": ["0", "2"],
    "saved_recurrent": ["rnn", "head"],
    "scripted": ["(RecursiveScriptModule)"],
    "sharpness_aware": ["0", "2"],
    "sparse_gradients": ["embedding", "head"],
    "spawned_workers": ["0", "2"],
    "two_loaders": ["0", "2"],
    "two_optimizers": ["0", "2"],
    "update_in_backward": ["0", "2", "4"],
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_layer_keeps_its_own_name_and_has_every_phase(name, case):
    ran = case(name)
    assert ran.layer_names == NAMES[name]
    assert {layer: ran.phases(layer) for layer in NAMES[name]} == dict.fromkeys(NAMES[name], EVERYTHING)


@pytest.mark.parametrize("name", ["average_kept", "generator", "lightning_module", "no_eval"])
def test_validation_runs_the_same_layers_forward(name, case):
    ran = case(name)
    phases = {layer: ran.phases(layer, "validation") for layer in NAMES[name]}
    assert phases == dict.fromkeys(NAMES[name], FORWARD)


def test_an_averaged_copy_is_a_network_of_its_own(case):
    ran = case("average_validated")
    assert ran.layer_names[:2] == ["0", "2"]
    copies = ran.layer_names[2:]
    assert len(copies) == 2, ran.layer_names
    for layer, copy in zip(("0", "2"), copies, strict=True):
        assert (ran.phases(layer), ran.phases(layer, "validation")) == (EVERYTHING, set())
        assert (ran.phases(copy), ran.phases(copy, "validation")) == (set(), {"forward"})


def test_teacher_student_and_averaged_copy_keep_apart(case):
    ran = case("distillation")
    teacher, student = ["teacher.0", "teacher.2", "teacher.4"], ["student.0", "student.2"]
    assert ran.layer_names[:5] == teacher + student
    copies = ran.layer_names[5:]
    assert len(copies) == 2, ran.layer_names
    assert {layer: ran.phases(layer) for layer in teacher} == dict.fromkeys(teacher, FORWARD)
    assert {layer: ran.phases(layer) for layer in student} == dict.fromkeys(student, EVERYTHING)
    for layer in ran.layer_names:
        assert ran.phases(layer, "validation") == ({"forward"} if layer in copies else set()), layer


def test_a_network_called_with_other_parameters_keeps_its_layers(case):
    """The parameters that are updated belong to no layer."""
    ran = case("functional_call")
    assert ran.layer_names == ["0", "2"]
    assert ran.phases("0") == ran.phases("2") == {"forward", "backward"}
    assert ran.phases("(other)") == {"update"}


def test_a_tied_head_is_updated_with_its_first_user(case):
    ran = case("hugging_face")
    blocks = [f"transformer.h.{number}." for number in range(2)]
    parts = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    inner = [block + part for block in blocks for part in parts]
    assert ran.layer_names == ["transformer.wte", "transformer.wpe", *inner, "lm_head"]
    assert ran.phases("transformer.wte") == EVERYTHING
    assert ran.phases("lm_head") == {"forward", "backward"}


def test_an_optimizer_that_calls_the_network_itself_has_its_calls_counted(case):
    assert case("lbfgs").calls("0", "forward") == case("lbfgs").calls("0", "backward") == [4] * 8


def test_a_forward_that_is_repeated_in_backward_is_backward_time(case):
    ran = case("checkpointed")
    for layer in NAMES["checkpointed"]:
        repeated = layer.startswith("blocks.")
        assert ran.calls(layer, "forward") == [1] * 12, layer
        assert ran.calls(layer, "backward") == [2 if repeated else 1] * 12, layer


def test_a_gradient_inside_the_loss_is_a_backward_of_its_own(case):
    ran = case("gradient_penalty")
    assert ran.calls("0", "backward") == ran.calls("2", "backward") == [2] * 16


def test_a_layer_has_an_update_only_where_its_own_optimizer_steps(case):
    ran = case("two_optimizers")
    assert (len(ran.calls("0", "update")), len(ran.calls("2", "update"))) == (16, 8)


@pytest.mark.parametrize(
    ("where", "layers"),
    [
        ("nowhere", [("0", False), ("2", False)]),
        ("network", [("(Sequential)", True)]),
        ("in place", [("(Sequential)", True)]),
        ("layer", [("0", True), ("2", False)]),
    ],
)
def test_what_is_compiled_is_one_unit_that_says_so(where, layers, case):
    ran = case("compiled", where, "aot_eager")
    assert (ran.recorded.status, ran.recorded.last_line) == (0, ran.bare.last_line)
    assert ran.stages == "16 train"
    assert [(layer.name, layer.compiled) for layer in ran.run.network] == layers
    for name, _ in layers:
        assert ran.phases(name) == EVERYTHING


@pytest.mark.parametrize("where", ["loss", "step"])
def test_a_network_inside_a_compiled_function_is_told_to_be_out_of_sight(where, case):
    ran = case("compiled", where, "aot_eager")
    assert (ran.recorded.status, ran.recorded.last_line) == (0, ran.bare.last_line), ran.recorded.stderr
    if ran.has_run:
        assert ran.stages == "16 train"
        assert ran.run.summary["notes"]
    else:
        assert len(ran.recorded.from_laptime) == 1, ran.recorded.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("where", ["network", "in place", "layer", "loss", "step"])
def test_the_default_compiler_trains_the_same_while_recorded(where, case):
    ran = case("compiled", where, "inductor")
    assert (ran.recorded.status, ran.recorded.last_line) == (0, ran.bare.last_line), ran.recorded.stderr
