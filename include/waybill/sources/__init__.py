"""Reading record batches from Kafka, and other tools' offsets from where they keep them. Import the module you need."""
