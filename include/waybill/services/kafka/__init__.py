"""Reading record batches from Kafka, and the stored offsets of other tools. Import the module that you need."""

from waybill.services.kafka.kafka_package import skip_packages

skip_packages()
