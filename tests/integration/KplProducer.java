import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.services.kinesis.producer.KinesisProducer;
import com.amazonaws.services.kinesis.producer.KinesisProducerConfiguration;
import com.amazonaws.services.kinesis.producer.UserRecordResult;
import com.google.common.util.concurrent.ListenableFuture;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Puts COUNT numbered records with the Kinesis Producer Library: KplProducer TLS_PORT STREAM COUNT.
 *
 * The library aggregates records as soon as it knows the shards, which it asks for at the first record.
 */
public class KplProducer {
    public static void main(String[] args) throws Exception {
        KinesisProducer producer = new KinesisProducer(new KinesisProducerConfiguration()
            .setCredentialsProvider(new AWSStaticCredentialsProvider(new BasicAWSCredentials("key", "secret")))
            .setRegion("us-east-1")
            .setKinesisEndpoint("127.0.0.1")
            .setKinesisPort(Integer.parseInt(args[0]))
            .setVerifyCertificate(false)
            .setMetricsLevel("none")
            .setRecordMaxBufferedTime(500));
        List<ListenableFuture<UserRecordResult>> results = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(args[2]); number++) {
            ByteBuffer data = ByteBuffer.wrap(Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            // Every third record has an explicit hash key: the number's own, scaled to the range of hashes.
            String hashKey = number % 3 == 0 ? BigInteger.valueOf(number).shiftLeft(116).toString() : null;
            if (number == 1) {
                producer.flushSync();
                Thread.sleep(3000);
            }
            results.add(producer.addUserRecord(args[1], "key-" + number % 7, hashKey, data));
        }
        producer.flushSync();
        for (ListenableFuture<UserRecordResult> result : results) {
            if (!result.get().isSuccessful()) {
                throw new IllegalStateException("a record was not put");
            }
        }
        producer.destroy();
    }
}
