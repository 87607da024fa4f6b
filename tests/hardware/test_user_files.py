import pytest

from laptime.errors import CatalogError
from laptime.hardware import device, devices, price

MINE = """
name = "my-box"
kind = "gpu"
memory_bandwidth_gbs = 500
fp32 = 12.5
"""


def written(path, text=MINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_device_of_one_s_own_is_one_file(tmp_path):
    path = written(tmp_path / "mybox.toml", MINE + 'memory_gib = 16\nsources = { fp32 = "measured" }\n')
    mine = device(path)
    assert mine == device(str(path))
    assert (mine.name, mine.title, mine.fp32, mine.memory_gib) == ("my-box", "my-box", 12.5, 16)
    assert mine.sources == {"memory_gib": str(path), "memory_bandwidth_gbs": str(path), "fp32": "measured"}


def test_a_relative_path_is_a_path(tmp_path, monkeypatch):
    written(tmp_path / "mybox.toml")
    monkeypatch.chdir(tmp_path)
    assert device("./mybox.toml").name == device("mybox.toml").name == "my-box"


def test_memory_may_be_left_out(tmp_path):
    assert device(written(tmp_path / "mybox.toml")).memory_bytes is None


def test_files_in_the_settings_are_known_by_name(settings):
    written(settings / "devices" / "any-name.toml", MINE + 'aliases = ["the box"]\n')
    assert device("My Box").name == device("the box").name == "my-box"
    assert devices()[-1].name == "my-box"


def test_a_variable_names_another_folder(settings, tmp_path, monkeypatch):
    written(settings / "devices" / "a.toml")
    written(tmp_path / "elsewhere" / "b.toml", MINE.replace("my-box", "your-box"))
    monkeypatch.setenv("LAPTIME_DEVICES", str(tmp_path / "elsewhere"))
    assert devices()[-1].name == "your-box"
    monkeypatch.setenv("LAPTIME_DEVICES", str(tmp_path / "nowhere"))
    with pytest.raises(CatalogError, match="nowhere is no folder; make it"):
        devices()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fp32 = 12.5", "fp_32 = 12.5"), "'fp_32' is no key; did you mean 'fp32'?"),
        (("memory_bandwidth_gbs", "memory_bandwith"), "did you mean 'memory_bandwidth_gbs'?"),
        (("fp32 = 12.5", "fp32 = -1"), "fp32 is -1; give more than 0 TFLOP/s"),
        (("fp32 = 12.5", "fp32 = 0"), "fp32 is 0; give more than 0 TFLOP/s"),
        (("fp32 = 12.5", "fp32 = nan"), "fp32 is nan; give a number in TFLOP/s"),
        (("fp32 = 12.5", "fp32 = true"), "fp32 is True; give a number in TFLOP/s"),
        (("fp32 = 12.5", "fp32 = '12'"), "fp32 is '12'; give a number in TFLOP/s"),
        (("fp32 = 12.5", "fp32 = 12.5e12"), "fp32 is 1.25e+13; that is too much for TFLOP/s: check the unit"),
        (("fp32 = 12.5", "sms = 4"), "no peak; give fp32"),
        (("fp32 = 12.5", "fp32 = 1\nsms = 4.5"), "sms is 4.5; give a whole number"),
        (("memory_bandwidth_gbs = 500", ""), "memory_bandwidth_gbs is missing; give it in GB/s"),
        (('name = "my-box"', ""), "name is missing; give a text"),
        (('"my-box"', '"My Box"'), "name is 'My Box'; write it as 'my-box'"),
        (('"my-box"', '"h200"'), "'h200' is taken by h200 already; choose another name"),
        (('"my-box"', '"h200-sxm"'), "'h200-sxm' is taken by h200 already"),
        (('"my-box"', '"titan-x"'), "'titan-x' is taken by titan-x-maxwell, titan-x-pascal already"),
        (('kind = "gpu"', ""), "kind is missing"),
        (('"gpu"', '"tpu"'), "kind is 'tpu'; give 'gpu' or 'cpu'"),
        (("fp32 = 12.5", 'fp32 = 1\nhost_link = "pcie-4x16"'), "did you mean 'pcie-4-x16'?"),
        (("fp32 = 12.5", 'fp32 = 1\naliases = "x"'), "aliases is 'x'; give a list of texts"),
        (("fp32 = 12.5", 'fp32 = 1\nsources = { fp16 = "x" }'), "sources: 'fp16' is no key"),
        (("fp32 = 12.5", 'fp32 = 1\nestimated = ["fp16"]'), "estimated: 'fp16' is no key"),
        (("fp32 = 12.5", 'fp32 = 1\nsources = "x"'), "sources is 'x'; give a table"),
        (("fp32 = 12.5", "fp32 = 12,5"), "is not TOML"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_key_and_remedy(tmp_path, change, said):
    path = written(tmp_path / "mybox.toml", MINE.replace(*change))
    with pytest.raises(CatalogError) as caught:
        device(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(CatalogError, match=r"missing\.toml does not exist; check the path"):
        device(str(tmp_path / "missing.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(CatalogError, match=r"folder\.toml cannot be read: it is a folder"):
        device(tmp_path / "folder.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(CatalogError, match="is not UTF-8"):
        device(tmp_path / "latin.toml")


def test_two_files_cannot_share_a_name(settings):
    written(settings / "devices" / "a.toml")
    written(settings / "devices" / "b.toml")
    with pytest.raises(CatalogError, match=r"b\.toml: 'my-box' is taken by my-box already"):
        devices()


def test_one_s_own_prices_come_before_the_examples(settings):
    written(settings / "devices" / "mybox.toml")
    text = '[[price]]\ndevice = "{}"\ndollars_per_hour = {}\n'
    written(settings / "prices.toml", text.format("NVIDIA H200", 1.5) + text.format("my-box", 0.1))
    assert (price("h200").dollars_per_hour, price("h200").example) == (1.5, False)
    assert price("my-box").dollars_per_hour == 0.1
    assert price("h100-sxm").example


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[price]]\ndevice = "h20"\ndollars_per_hour = 1', "no device is called 'h20'"),
        ('[[price]]\ndevice = "h200"\ndollars_per_hour = -1', "dollars_per_hour is -1; give more than 0"),
        ('[[price]]\ndevice = "h200"\ndollars = 1', "did you mean 'dollars_per_hour'?"),
        ('[[price]]\ndevice = "h200"\ndollars_per_hour = 1\nexample = 1', "give true or false"),
        ("price = 3", "write each price under a line [[price]]"),
    ],
)
def test_wrong_prices_are_one_line_with_the_file(settings, text, said):
    path = written(settings / "prices.toml", text)
    with pytest.raises(CatalogError) as caught:
        price("h200")
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
