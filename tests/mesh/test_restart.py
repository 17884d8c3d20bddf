from meshnet.mesh.restart import RestartBook, RestartPolicy
from meshnet.mesh.threads import thread_environment

POLICY = RestartPolicy(delay_min_s=0.2, delay_max_s=5.0, healthy_s=30.0, failures_max=3)


def test_the_pause_doubles_up_to_its_bound():
    book = RestartBook(POLICY)

    pauses = [book.died(was_ready=True, lived_s=1.0, code=-9) for _ in range(7)]

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_healthy_life_starts_the_pauses_over():
    book = RestartBook(POLICY)
    for _ in range(4):
        book.died(was_ready=True, lived_s=1.0, code=-9)

    assert book.died(was_ready=True, lived_s=30.0, code=-9) == 0.2


def test_a_child_that_never_gets_ready_is_given_up():
    book = RestartBook(POLICY)

    pauses = [book.died(was_ready=False, lived_s=1.0, code=-9) for _ in range(3)]

    assert pauses == [0.2, 0.4, None]


def test_only_failures_in_a_row_count():
    book = RestartBook(POLICY)
    book.died(was_ready=False, lived_s=1.0, code=-9)
    book.died(was_ready=False, lived_s=1.0, code=-9)
    book.died(was_ready=True, lived_s=1.0, code=-9)

    assert book.died(was_ready=False, lived_s=1.0, code=-9) is not None


def test_nodes_share_the_cores_and_never_get_less_than_one_thread():
    assert thread_environment(cores=8, nodes=2)["OMP_NUM_THREADS"] == "4"
    assert thread_environment(cores=2, nodes=3)["OMP_NUM_THREADS"] == "1"


def test_threads_that_crowd_the_machine_do_not_spin():
    assert thread_environment(cores=2, nodes=3)["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in thread_environment(cores=8, nodes=2, threads=1)


def test_a_refusal_at_the_first_start_is_final_and_later_ones_are_not():
    """A node that was ready once may fail to come back for a moment: its port is still taken."""
    never, once = RestartBook(POLICY), RestartBook(POLICY)
    once.died(was_ready=True, lived_s=1.0, code=-9)

    assert never.died(was_ready=False, lived_s=1.0, code=1) is None
    assert once.died(was_ready=False, lived_s=1.0, code=1) is not None
