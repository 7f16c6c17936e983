"""The table of calls between brokers, and the two ends of each."""

from __future__ import annotations

import inspect

from ottla.broker.applying import ControlApplier
from ottla.interbroker.calls import (
    ANSWER_MARGIN_SECONDS,
    OPERATIONS,
    BrokerControl,
    DeleteTopicRequest,
    DrainRequest,
    deadline_seconds,
)
from ottla.interbroker.codec import BROKER_SERVICE, CONTROLLER_SERVICE


def test_a_broker_answers_every_call_itself() -> None:
    """A method that it does not have would give the request to `call`, and that would give it back."""
    for name, method in inspect.getmembers(BrokerControl, inspect.iscoroutinefunction):
        assert (getattr(ControlApplier, name) is method) == (name == "call"), name


def test_every_method_of_the_proto_files_is_in_the_table() -> None:
    methods = [
        (service is CONTROLLER_SERVICE, method.name) for service in (BROKER_SERVICE, CONTROLLER_SERVICE) for method in service.methods
    ]
    assert [(operation.is_for_controller, operation.rpc) for operation in OPERATIONS.values()] == methods


def test_a_request_with_a_timeout_is_waited_for_longer_than_that_and_every_other_one_as_long_as_the_transport_says() -> None:
    assert deadline_seconds(DeleteTopicRequest("a", 60), 30) == 60 + ANSWER_MARGIN_SECONDS
    assert deadline_seconds(DeleteTopicRequest("a", -1), 30) == ANSWER_MARGIN_SECONDS
    assert deadline_seconds(DrainRequest(), 30) == 30
