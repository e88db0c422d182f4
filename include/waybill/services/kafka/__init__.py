"""Reading record batches from Kafka, and other tools' offsets from where they keep them. Import the module you need."""

from waybill.services.kafka.kafka_package import skip_packages

skip_packages()
