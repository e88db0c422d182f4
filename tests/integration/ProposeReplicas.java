import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.metadata.placement.UsableBroker;
import org.apache.kafka.tools.reassign.ReassignPartitionsCommand;

/**
 * Places the replicas of a topic with the method of `kafka-reassign-partitions.sh --generate`, without a cluster.
 *
 * Each line of the input is a cluster and a topic: PARTITIONS FACTOR RACK,RACK,... with a rack for each broker 0, 1, 2, ...
 * The line of the output has the replicas of each topic-partition: 0,1;1,2;2,0
 */
public class ProposeReplicas {
    public static void main(String[] args) throws Exception {
        Method propose = ReassignPartitionsCommand.class.getDeclaredMethod("calculateAssignment", Map.class, List.class);
        propose.setAccessible(true);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split(" ");
            int partitions = Integer.parseInt(fields[0]);
            // The method keeps the number of replicas that topic-partitions have.
            List<Integer> before = new ArrayList<>(Collections.nCopies(Integer.parseInt(fields[1]), 0));
            Map<TopicPartition, List<Integer>> current = new HashMap<>();
            for (int number = 0; number < partitions; number++) {
                current.put(new TopicPartition("t", number), before);
            }
            List<UsableBroker> brokers = new ArrayList<>();
            for (String rack : fields[2].split(",")) {
                brokers.add(new UsableBroker(brokers.size(), Optional.of(rack), false));
            }
            Map<?, ?> proposed = (Map<?, ?>) propose.invoke(null, current, brokers);
            List<String> found = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                List<?> replicas = (List<?>) proposed.get(new TopicPartition("t", number));
                found.add(replicas.stream().map(String::valueOf).collect(Collectors.joining(",")));
            }
            System.out.println(String.join(";", found));
        }
    }
}
