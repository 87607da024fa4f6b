from dataclasses import replace
from typing import get_args

from tests.views.samples import a_rich_run

from laptime.cli.show import Sort
from laptime.model import LayerSeconds
from laptime.runs import load
from laptime.views.run_tables import ORDERS, in_order, largest, ordered
from laptime.views.run_view import run_view


def a_layer(name, forward, backward=None):
    return LayerSeconds(layer=name, forward_s=forward, backward_s=backward or 0.0, update_s=0.0)


LAYERS = [a_layer("b10", 1.0, 5.0), a_layer("b2", 3.0, 1.0), a_layer("A1", 2.0)]


def names(layers):
    return [one.layer for one in layers]


def test_the_largest_come_first_by_time():
    assert names(in_order(LAYERS, "time")) == ["b10", "b2", "A1"]


def test_the_network_s_order_is_left_alone():
    assert names(in_order(LAYERS, "network")) == ["b10", "b2", "A1"]


def test_a_phase_sorts_by_its_own_time_and_a_layer_without_it_is_last():
    assert names(in_order(LAYERS, "forward")) == ["b2", "A1", "b10"]
    assert names(in_order(LAYERS, "backward")) == ["b10", "b2", "A1"]


def test_names_sort_with_their_numbers_as_numbers():
    assert names(in_order(LAYERS, "name")) == ["A1", "b2", "b10"]
    odd = [a_layer(name, 1.0) for name in ("²", "", "7", "x")]
    assert names(in_order(odd, "name"))[0] == ""


def test_a_phase_that_no_layer_has_sorts_by_time():
    assert names(in_order(LAYERS, "update")) == ["b10", "b2", "A1"]


def test_equal_layers_stay_in_network_order():
    same = [a_layer(name, 1.0) for name in "zyx"]
    assert names(in_order(same, "time")) == ["z", "y", "x"]


def test_what_is_shown_is_the_largest_of_what_is_sorted_by():
    many = [a_layer(f"l{place}", 10.0 - place, 1.0 + 2 * place) for place in range(6)]
    shown, rest = largest(many, "forward", 2)
    assert names(shown) == ["l0", "l1"]
    assert len(rest) == 4
    assert names(largest(many, "network", 2)[0]) == ["l4", "l5"]  # largest in total, in network order


def test_no_row_stands_for_one_layer():
    shown, rest = largest(LAYERS, "time", 2)
    assert (len(shown), rest) == (3, [])


def test_a_run_is_sorted_in_both_stages_and_else_the_same(tmp_path):
    view = run_view(load(a_rich_run(tmp_path / "run")))
    sorted_ = ordered(view, "time")
    assert names(view.train.layers) == ["stem", "block", "head"]
    assert names(sorted_.train.layers) == ["block", "head", "stem"]
    assert names(sorted_.validation.layers) == ["block", "head", "stem"]
    assert replace(sorted_, stages=view.stages) == view


def test_the_command_offers_every_order():
    assert get_args(Sort) == tuple(ORDERS)
