"""What is kept of the link graph, against networkx, which computes it from nothing."""

import networkx as nx
import numpy as np
import pytest

from mission_gym_missions.explore.graph import DAMPING, FAR, LinkGraph


@pytest.mark.parametrize("seed", range(5))
def test_everything_is_what_networkx_computes_after_every_page(seed):
    rng = np.random.default_rng(seed)
    graph, oracle = LinkGraph(), nx.DiGraph()
    graph.add("0")
    oracle.add_node("0")
    for _ in range(25):
        frontier = [node for node in range(len(graph)) if not graph.is_visited(node)]
        if not frontier:
            break
        node = int(rng.choice(frontier))
        links = {str(number) for number in rng.integers(0, 60, rng.integers(0, 8))} - {graph.urls[node]}
        graph.visit(node, sorted(links))
        oracle.add_edges_from((graph.urls[node], link) for link in links)
        assert (len(graph), graph.num_edges) == (oracle.number_of_nodes(), oracle.number_of_edges())
        assert graph.num_frontier == len(graph) - graph.num_visited
        ranks = nx.pagerank(oracle, DAMPING, tol=1e-10)
        distances = nx.single_source_shortest_path_length(oracle, "0")
        for number, url in enumerate(graph.urls):
            assert graph.in_degrees[number] == oracle.in_degree(url)
            assert graph.distances[number] == distances.get(url, FAR)
            assert graph.rank(number) == pytest.approx(ranks[url] * len(graph), rel=2e-3)


def test_a_page_that_links_to_itself_and_to_nothing_else():
    graph = LinkGraph()
    graph.visit(graph.add("home"), ["home"])
    assert graph.rank(0) == pytest.approx(1.0)
    assert graph.distances == [0]
