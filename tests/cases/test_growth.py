"""What a recording holds does not grow with the length of a loop that never ends a step."""

OBJECTS_A_STEP = 10  # rows of steps that wait for the next flush; every operation of a step is 30
MEMORY_MIB = 18  # a flush takes up to 10 once; keeping every operation would take 24


def test_a_loop_without_optimizer_and_loader_does_not_fill_the_memory(case):
    ran = case("manual_update", "2000")
    assert (ran.recorded.status, ran.recorded.last_line) == (0, ran.bare.last_line), ran.recorded.stderr
    told = [line.split()[1:] for line in ran.recorded.stderr.splitlines() if line.startswith("growth:")]
    objects, memory = zip(*((int(count), float(mib)) for count, mib in told), strict=True)
    assert objects[-1] - objects[0] < OBJECTS_A_STEP * 1600, objects
    assert memory[-1] - memory[0] < MEMORY_MIB, memory
