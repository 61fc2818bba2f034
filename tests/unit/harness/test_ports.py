from tests.harness.ports import first_local_port, free_ports


def test_no_connection_can_be_given_the_port_of_a_dead_service():
    """Ports stand below those of connections, and none is given twice."""
    ports = free_ports(100) + free_ports(100)
    assert len({*ports}) == 200
    assert max(ports) < first_local_port()
