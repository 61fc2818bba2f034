"""One outage of the campaign in `tests.system.outages`."""

from tests.system import outages


def test_brokers_outlive_a_kafka_that_is_down(tmp_path, monkeypatch):
    """`memq status` names it and says when it is over; nothing acked is lost, or there twice."""
    monkeypatch.setattr(outages, "CALM_S", 0.0)
    monkeypatch.setattr(outages, "SAID_S", outages.SETTLED_S)  # how soon is for the campaign
    monkeypatch.setattr(outages, "NAMED_S", outages.SETTLED_S)
    assert outages.run(tmp_path, 0.01, "kafka refuses", 0) == []
