"""One door for predictions: networks, their names, files, saved workloads and runs."""

import pytest
import torch
from torch import nn

import laptime
from laptime.errors import BadTarget, FixedOption, UnknownInput, WorkloadError
from laptime.training.prediction_target import NetworkOptions, prediction_target, transformers_network

transformers = pytest.importorskip("transformers")


def tiny_gpt2():
    config = transformers.GPT2Config(vocab_size=99, n_positions=24, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def tiny_bert(head="BertForMaskedLM"):
    config = transformers.BertConfig(
        vocab_size=99,
        max_position_embeddings=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    return getattr(transformers, head)(config)


def tiny_t5():
    config = transformers.T5Config(vocab_size=99, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def tiny_vit():
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (tiny_gpt2, "24 token ids"),
        (tiny_bert, "20 token ids"),
        (lambda: tiny_bert("BertForSequenceClassification"), "20 token ids"),
        (lambda: tiny_bert("BertModel"), "20 token ids"),
        (tiny_t5, "512 token ids"),
        (tiny_vit, "images of 3x32x32"),
    ],
)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_input_of_a_transformers_network_comes_from_its_configuration(make, told, mode):
    made = laptime.predict(make(), batch=4, mode=mode)
    assert made.batch == 4
    assert made.step_s > 0
    assert any(told in note for note in made.notes)


def test_an_input_that_is_given_stands_before_the_configuration():
    ids = torch.zeros((2, 8), dtype=torch.int64)
    made = laptime.predict(tiny_gpt2(), example={"input_ids": ids, "labels": ids})
    assert made.batch == 2
    assert not made.notes


def test_labels_are_part_of_a_training_step_only():
    target = prediction_target(tiny_gpt2(), NetworkOptions())
    trained, passed = (
        prediction_target(tiny_gpt2(), NetworkOptions(mode=mode)).read(2)
        for mode in ("training", "inference")
    )
    assert target.batch == 32
    assert trained.memory.inputs == 2 * passed.memory.inputs


def test_a_network_of_the_zoo_is_predicted_by_its_name():
    made = laptime.predict("resnet18", batch=16, precision="bf16")
    assert (made.network, made.batch, made.precision) == ("resnet18", 16, "bf16")
    assert laptime.workload("zener4").batch == 32
    assert laptime.largest_batch("resnet18", device="t4").batch > 32


def test_a_transformers_network_is_predicted_by_the_name_of_its_type():
    network = transformers_network("gpt2")
    assert type(network).__name__ == "GPT2LMHeadModel"
    assert next(network.parameters()).device.type == "meta"
    assert type(transformers_network("bert")).__name__ == "BertForMaskedLM"
    assert transformers_network("no such network") is None


def test_a_network_in_a_file_is_predicted_with_what_lies_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    file = tmp_path / "my_network.py"
    file.write_text(
        "from torch import nn\nfrom beside import WIDTH\n\ndef build():\n    return nn.Linear(WIDTH, 4)\n"
    )
    made = laptime.predict(f"{file}:build", input=(8,), batch=16)
    assert made.batch == 16
    with pytest.raises(BadTarget, match="no file"):
        laptime.predict(f"{tmp_path}/other.py:build", input=(8,))
    with pytest.raises(BadTarget, match=r"file\.py:callable"):
        laptime.predict(str(file), input=(8,))
    with pytest.raises(UnknownInput, match="give the shape of one sample"):
        laptime.predict(f"{file}:build")


def test_a_saved_workload_is_predicted_from_its_path_at_any_batch(tmp_path):
    saved = laptime.workload(nn.Linear(64, 64), input=(64,), batch=16)
    saved.save(tmp_path / "w.json")
    made = [laptime.predict(one, batch=32) for one in (saved, tmp_path / "w.json", str(tmp_path / "w.json"))]
    assert {one.step_s for one in made} == {made[0].step_s}
    assert made[0].batch == 32
    with pytest.raises(FixedOption, match="precision= is given, but a saved workload has its own"):
        laptime.predict(saved, precision="bf16")


def test_a_batch_that_no_tensor_holds_is_refused():
    with pytest.raises(WorkloadError, match="give at most"):
        laptime.predict("resnet18", device="h200", batch=10**23)
