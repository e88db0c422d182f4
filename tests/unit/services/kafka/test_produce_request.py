"""Produce requests that are encoded by hand are those of kafka-python, byte for byte."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from waybill.services.kafka.produce_request import REQUEST_END, PartitionRequests, ProduceAnswer

TOPICS = st.text("abcXYZ0189._-", min_size=1, max_size=249)
PARTITIONS = st.integers(0, 2**31 - 1)


@given(TOPICS, PARTITIONS, st.binary(max_size=300), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_request_is_the_one_that_kafka_python_encodes(
    topic: str, partition: int, batch: bytes, timeout_ms: int, correlation_id: int
) -> None:
    requests = PartitionRequests(topic, partition, timeout_ms, "waybill")
    raw = requests.begin(correlation_id, len(batch)) + batch + REQUEST_END
    topic_data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        version=9,
        transactional_id=None,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[
            topic_data(
                name=topic,
                partition_data=[topic_data.PartitionProduceData(index=partition, records=batch)],
            )
        ],
    )
    request.with_header(correlation_id=correlation_id, client_id="waybill")
    assert raw == request.encode(framed=True, header=True)


@given(
    TOPICS,
    PARTITIONS,
    st.sampled_from([0, 3, 10, 45, 87]),
    st.integers(-1, 2**62),
    st.none() | st.text(max_size=20),
    st.integers(0, 100_000),
    st.booleans(),
)
@example("t", 0, 0, 0, "", 0, False)
@example("t", 0, 10, 0, "", 0, True)
def test_answer_is_the_one_that_kafka_python_decodes(
    topic: str, partition: int, code: int, offset: int, message: str | None, throttle_ms: int, with_errors: bool
) -> None:
    topic_response = ProduceResponse.TopicProduceResponse
    partition_response = topic_response.PartitionProduceResponse
    errors = [partition_response.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no")]
    response = ProduceResponse(
        version=9,
        responses=[
            topic_response(
                name=topic,
                partition_responses=[
                    partition_response(
                        index=partition,
                        error_code=code,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=errors if with_errors else [],
                        error_message=message,
                    )
                ],
            )
        ],
        throttle_time_ms=throttle_ms,
    )
    response.with_header(correlation_id=77)
    found = PartitionRequests(topic, partition, 1, "waybill").read(response.encode(header=True))
    if code or with_errors or message is not None:
        said = message or ("no" if with_errors else None)  # an empty message says nothing
        assert found == ProduceAnswer(code, offset, said, throttle_ms, 1 if with_errors else None)
    else:
        assert found == ProduceAnswer(0, offset, None, throttle_ms)
