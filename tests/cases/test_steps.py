"""Steps, updates, epochs and samples of each script, by the definition: a step is one batch."""

from dataclasses import dataclass, replace

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the steps of a script are. Samples and epochs are None where nothing tells them to a recorder."""

    stages: str
    updates: list[int]
    epochs: list[int] | None = None
    samples: list[int] | None = None


def epochs_of(steps: int, epochs: int) -> list[int]:
    """The epoch of each step: 0, 0, …, 1, 1, …"""
    return [epoch for epoch in range(epochs) for _ in range(steps)]


def one_epoch(steps: int) -> Expected:
    """Batches of 8 from a loader, each with an update."""
    return Expected(
        stages=f"{steps} train",
        updates=list(range(1, steps + 1)),
        epochs=[0] * steps,
        samples=[8] * steps,
    )


def no_loader(steps: int) -> Expected:
    """Updates alone tell the steps apart."""
    return Expected(stages=f"{steps} train", updates=list(range(1, steps + 1)))


def validated(steps: int, held_out: int, epochs: int) -> Expected:
    """Batches of 8, each with an update; validation after each epoch."""
    updates: list[int] = []
    for epoch in range(epochs):
        updates += range(epoch * steps + 1, (epoch + 1) * steps + 1)
        updates += [(epoch + 1) * steps] * held_out
    return Expected(
        stages=", ".join([f"{steps} train, {held_out} validation"] * epochs),
        updates=updates,
        epochs=epochs_of(steps + held_out, epochs),
        samples=[8] * (steps + held_out) * epochs,
    )


EXPECTED = {
    "accelerated": Expected(
        stages="16 train, 4 validation, 16 train, 4 validation",
        updates=[n // 2 for n in range(1, 17)] + [8] * 4 + [8 + n // 2 for n in range(1, 17)] + [16] * 4,
        epochs=epochs_of(20, 2),
        samples=[8] * 40,
    ),
    "accumulation": Expected(
        stages="32 train",
        updates=[n // 4 for n in range(1, 33)],
        epochs=epochs_of(16, 2),
        samples=[8] * 32,
    ),
    "average_kept": validated(8, 8, epochs=3),
    "average_validated": validated(8, 8, epochs=3),
    "checkpointed": Expected(
        stages="12 train", updates=list(range(1, 13)), epochs=epochs_of(4, 3), samples=[32] * 12
    ),
    "custom_function": one_epoch(16),
    "data_parallel": one_epoch(8),
    "distillation": validated(16, 16, epochs=2),
    "endless_loader": Expected(
        stages="20 train",
        updates=list(range(1, 21)),
        epochs=[0] * 8 + [1] * 8 + [2] * 4,
        samples=[8] * 20,
    ),
    "evaluated_inside": Expected(
        stages=", ".join(["4 train, 5 validation"] * 4),
        updates=[number for i in range(4) for number in (*range(4 * i + 1, 4 * i + 5), *[4 * i + 4] * 5)],
        epochs=epochs_of(18, 2),
        samples=[8] * 36,
    ),
    "extra_batch": Expected(
        stages="24 train",
        updates=list(range(1, 25)),
        epochs=epochs_of(8, 3),
        samples=([8] * 7 + [4]) * 3,
    ),
    "fetch_before_backward": no_loader(12),
    "functional_call": one_epoch(8),
    "generator": Expected(
        stages="10 train, 4 validation, 10 train, 4 validation",
        updates=[*range(1, 11), *[10] * 4, *range(11, 21), *[20] * 4],
    ),
    "gradient_penalty": one_epoch(16),
    "graphs": Expected(
        stages="16 train", updates=list(range(1, 17)), epochs=epochs_of(8, 2), samples=[8] * 16
    ),
    "hugging_face": Expected(
        stages="20 train, 10 validation, 20 train, 10 validation",
        updates=[n // 2 for n in range(1, 21)] + [10] * 10 + [10 + n // 2 for n in range(1, 21)] + [20] * 10,
        epochs=epochs_of(30, 2),
        samples=([4] * 20 + [8] * 10) * 2,
    ),
    "keyword_names": one_epoch(8),
    "lazy_layers": one_epoch(8),
    "lbfgs": one_epoch(8),
    "lightning_module": Expected(
        stages="2 validation, 16 train, 4 validation, 16 train, 4 validation",
        updates=[0, 0]
        + [n // 2 for n in range(1, 17)]
        + [8] * 4
        + [8 + n // 2 for n in range(1, 17)]
        + [16] * 4,
        epochs=[0] * 22 + [1] * 20,
        samples=[8] * 42,
    ),
    "mixed_precision": one_epoch(16),
    "network_search": no_loader(40),
    "no_eval": Expected(
        stages=", ".join(["1 train, 1 validation"] * 8), updates=[n // 2 for n in range(2, 18)]
    ),
    "odd_outputs": one_epoch(16),
    "old_weight_norm": one_epoch(16),
    "own_profiler": one_epoch(16),
    "parametrized": one_epoch(16),
    "policy_methods": Expected(
        stages=", ".join(["4 validation, 6 train"] * 3),
        updates=[number for i in range(3) for number in (*[6 * i] * 4, *range(6 * i + 1, 6 * i + 7))],
    ),
    "prefetch": Expected(
        stages="16 train",
        updates=list(range(1, 17)),
        epochs=epochs_of(8, 2),
        samples=([8] * 7 + [4]) * 2,
    ),
    "quantization_aware": one_epoch(16),
    "reinforcement": no_loader(6),
    "saved_recurrent": no_loader(6),
    "scripted": one_epoch(16),
    "sharpness_aware": one_epoch(8),
    # Two backward passes make an update: each is a step, and every second has the update.
    "sparse_gradients": replace(no_loader(12), updates=[count for i in range(6) for count in (i, i + 1)]),
    "spawned_workers": one_epoch(4),
    "two_loaders": Expected(
        stages="16 train", updates=list(range(1, 17)), epochs=epochs_of(8, 2), samples=[8] * 16
    ),
    "two_optimizers": Expected(
        stages="16 train", updates=list(range(1, 17)), epochs=epochs_of(8, 2), samples=[8] * 16
    ),
    "update_in_backward": one_epoch(16),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_batch_is_a_step_of_its_stage_and_epoch(name, case):
    ran, expected = case(name), EXPECTED[name]
    assert ran.stages == expected.stages, ran.books()
    assert [step.optimizer_step for step in ran.steps] == expected.updates
    if expected.epochs is not None:
        assert [step.epoch for step in ran.steps] == expected.epochs
    if expected.samples is not None:
        assert [step.samples for step in ran.steps] == expected.samples


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_training_steps_have_every_phase_and_validation_steps_only_forward(name, case):
    ran = case(name)
    updates = 0
    for step in ran.steps:
        told = f"step {step.step}\n{ran.books()}"
        forward, backward, update = step.forward_s > 0, step.backward_s > 0, step.update_s > 0
        assert (forward, backward) == (True, step.stage == "train"), told
        if (name, step.step) != ("lbfgs", 0):  # its network is found inside its first update
            assert update == (step.optimizer_step > updates), told
        updates = step.optimizer_step


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"lazy_layers", "sparse_gradients"}))
def test_a_script_that_is_recorded_in_full_leaves_no_note(name, case):
    """Of lazy layers and sparse gradients not everything can be read, which may be noted."""
    assert case(name).run.summary["notes"] == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_run_ends_as_its_script_does(name, case):
    ran = case(name)
    assert ran.run.status == ("failed" if ran.bare.status else "finished")


def test_training_in_a_second_thread_is_recorded_or_told_to_be_missing(case):
    ran = case("in_thread")
    if ran.has_run and ran.of("train"):
        assert ran.stages == "8 train", ran.books()
        assert min(step.backward_s for step in ran.steps) > 0, ran.books()
        assert [step.samples for step in ran.steps] == [8] * 8
    else:
        assert any("thread" in line for line in ran.recorded.stderr.splitlines()), ran.recorded.stderr
