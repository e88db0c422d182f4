# Airflow with Waybill and the JDK that Spark needs; used by docker-compose.yaml.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jdk-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java

WORKDIR /opt/waybill

# The lock first: a change of the code does not install everything again.
COPY requirements.txt requirements-image.txt ./
# setuptools first: what has no wheel is built with it, and not with one that the lock does not name.
RUN awk '/^setuptools==/ {on = 1} on {print} on && !/\\$/ {on = 0}' requirements.txt > /tmp/setuptools.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r /tmp/setuptools.txt \
    && pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation \
        -r requirements.txt -r requirements-image.txt

# The SHA-256 of each jar is compared.
COPY include/devstack/jars.sha256 /tmp/jars.sha256
# Iceberg's jars, which maintenance needs (waybill.tables.spark.catalog.JARS), by the Ivy that is inside pyspark.
RUN spark="$(python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')" \
    && for jar in org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0 org.apache.iceberg:iceberg-aws-bundle:1.11.0 \
        org.xerial:sqlite-jdbc:3.50.3.0 org.postgresql:postgresql:42.7.12; do \
        java -cp "$spark/jars/*" org.apache.ivy.Main -cache /tmp/ivy -dependency $(echo $jar | tr : ' ') \
            -confs default -types jar bundle -retrieve "/opt/iceberg/[artifact]-[revision].[ext]" || exit 1; \
    done \
    && for jar in /opt/iceberg/*; do \
        grep -qxF "$(sha256sum "$jar" | cut -d' ' -f1)  $(basename "$jar")" /tmp/jars.sha256 \
            || { echo "$jar is not the one of jars.sha256"; exit 1; }; \
    done \
    && rm -rf /tmp/ivy && mkdir /opt/spark-conf \
    && for process in driver executor; do \
        echo "spark.$process.extraClassPath /opt/iceberg/*" >> /opt/spark-conf/spark-defaults.conf; \
    done

COPY pyproject.toml requirements.in README.md LICENSE ./
COPY include ./include
COPY dags ./dags
COPY plugins ./plugins
COPY spark_jobs ./spark_jobs
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    # The user below cannot write bytecode here, and each task would compile these modules again.
    && python -m compileall -q include dags plugins spark_jobs \
    && useradd --create-home --uid 50000 airflow \
    && mkdir -p /opt/airflow/logs /var/lib/waybill \
    && chown -R airflow /opt/airflow /var/lib/waybill

ENV JAVA_HOME=/opt/java \
    PYSPARK_PYTHON=/usr/local/bin/python \
    SPARK_CONF_DIR=/opt/spark-conf \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/waybill/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/waybill/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False
USER airflow
ENTRYPOINT ["airflow"]
CMD ["version"]
