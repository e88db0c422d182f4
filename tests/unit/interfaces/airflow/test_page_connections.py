"""The connections of the pages follow those of Airflow, while the API server runs."""

from __future__ import annotations

from waybill.interfaces.airflow.page_connections import PageConnections


class Airflow:
    def __init__(self) -> None:
        self.connections: dict[str, str] = {"s3": "first"}
        self.is_away = False
        self.asked = 0
        self.clock = 0.0
        self.environment = {"AIRFLOW_CONN_KAFKA": "of the machine"}
        self.pages = PageConnections(["s3", "kafka"], self.find, self.environment, lambda: self.clock)

    def find(self, conn_id: str) -> str | None:
        self.asked += 1
        if self.is_away:
            raise OSError("the database does not answer")
        return self.connections.get(conn_id)


def test_a_rotated_credential_is_there_after_a_minute_or_after_a_failure() -> None:
    airflow = Airflow()
    assert airflow.pages.renew()
    airflow.connections["s3"] = "second"
    airflow.clock = 59
    assert not airflow.pages.renew()
    assert airflow.environment["AIRFLOW_CONN_S3"] == "first"
    assert airflow.pages.renew(at_once=True)
    assert airflow.environment["AIRFLOW_CONN_S3"] == "second"
    airflow.connections["s3"] = "third"
    airflow.clock = 120
    assert airflow.pages.renew()
    assert airflow.environment["AIRFLOW_CONN_S3"] == "third"
    airflow.clock = 240
    assert not airflow.pages.renew(), "nothing has changed"


def test_variables_of_the_environment_are_left_alone_and_one_that_airflow_lost_is_removed() -> None:
    airflow = Airflow()
    airflow.connections["kafka"] = "of Airflow"
    airflow.pages.renew()
    assert airflow.environment == {"AIRFLOW_CONN_KAFKA": "of the machine", "AIRFLOW_CONN_S3": "first"}
    del airflow.connections["s3"]
    assert airflow.pages.renew(at_once=True)
    assert airflow.environment == {"AIRFLOW_CONN_KAFKA": "of the machine"}


def test_while_airflows_database_is_away_the_connections_stay() -> None:
    airflow = Airflow()
    airflow.pages.renew()
    airflow.is_away = True
    assert not airflow.pages.renew(at_once=True)
    assert airflow.environment["AIRFLOW_CONN_S3"] == "first"
