import java.util.concurrent.CompletableFuture;
import org.eclipse.paho.client.mqttv3.MqttClient;
import org.eclipse.paho.client.mqttv3.persist.MemoryPersistence;

public class Hello {
    public static void main(String[] args) throws Exception {
        String server = "tcp://127.0.0.1:" + (args.length > 0 ? args[0] : "1883");
        MqttClient client = new MqttClient(server, "hello-java", new MemoryPersistence());
        CompletableFuture<String> arrived = new CompletableFuture<>();
        client.connect();
        client.subscribe("hello/java", 1, (topic, message) -> arrived.complete(topic + " " + message));
        client.publish("hello/java", "from Java".getBytes(), 1, false); // returns at PUBACK: fsynced on a quorum
        System.out.println(arrived.get());
        client.disconnect();
        client.close();
    }
}
