import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What Java's own client does with a broker; prints one line for each step that went well. */
public final class Steps {
  private static final long PATIENCE_MS = 120_000;
  private static final int RECORDS = 40;
  private static String address;

  public static void main(String[] arguments) throws Exception {
    address = arguments[0];
    String suffix = Long.toString(System.nanoTime());
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
      topics(admin, suffix);
      System.out.println("admin");
      produce("java-" + suffix);
      System.out.println("produce");
      for (String protocol : List.of("classic", "consumer")) {
        group(admin, "java-" + suffix, protocol);
        System.out.println("group " + protocol);
      }
      transactions("java-" + suffix, "java-out-" + suffix);
      System.out.println("transactions");
      users(admin);
      System.out.println("users");
      quotas(admin);
      System.out.println("quotas");
    }
    System.exit(0);
  }

  private static void topics(Admin admin, String suffix) throws Exception {
    try {
      admin
          .createTopics(
              List.of(
                  new NewTopic("java-" + suffix, 3, (short) -1),
                  new NewTopic("java-out-" + suffix, 2, (short) -1)))
          .all()
          .get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof TopicExistsException)) throw error;
    }
    admin.describeTopics(List.of("java-" + suffix)).allTopicNames().get();
    check(!admin.describeCluster().nodes().get().isEmpty(), "no nodes");
  }

  private static Properties settings(Map<String, String> more) {
    Properties known = new Properties();
    known.put("bootstrap.servers", address);
    known.put("key.serializer", StringSerializer.class.getName());
    known.put("value.serializer", StringSerializer.class.getName());
    known.put("key.deserializer", StringDeserializer.class.getName());
    known.put("value.deserializer", StringDeserializer.class.getName());
    known.putAll(more);
    return known;
  }

  private static void produce(String topic) throws Exception {
    for (String codec : List.of("none", "gzip", "lz4", "zstd")) {
      try (var producer =
          new KafkaProducer<String, String>(settings(Map.of("compression.type", codec)))) {
        for (int n = 0; n < RECORDS / 4; n++) {
          producer.send(new ProducerRecord<>(topic, "key " + n, codec + " " + n)).get();
        }
      }
    }
  }

  private static KafkaConsumer<String, String> consumer(String group, String protocol) {
    return new KafkaConsumer<>(
        settings(
            Map.of(
                "group.id", group,
                "group.protocol", protocol,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false",
                "isolation.level", "read_committed")));
  }

  private static void group(Admin admin, String topic, String protocol) throws Exception {
    String name = "java-" + protocol + "-" + topic;
    Set<String> read = new HashSet<>();
    try (var first = consumer(name, protocol);
        var second = consumer(name, protocol)) {
      first.subscribe(List.of(topic));
      second.subscribe(List.of(topic));
      long last = System.currentTimeMillis() + PATIENCE_MS;
      while (read.size() < RECORDS || first.assignment().isEmpty() || second.assignment().isEmpty()) {
        for (var each : List.of(first, second)) {
          for (ConsumerRecord<String, String> one : each.poll(Duration.ofMillis(200))) {
            read.add(one.value());
          }
        }
        check(System.currentTimeMillis() < last, read.size() + " read by " + protocol);
      }
      first.commitSync();
      second.commitSync();
      var found = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
      check(found.members().size() == 2, "members: " + found);
      check(found.type().toString().equalsIgnoreCase(protocol), "type: " + found.type());
    }
    long sum = 0;
    for (OffsetAndMetadata each :
        admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get().values()) {
      sum += each.offset();
    }
    check(sum == RECORDS, "committed: " + sum);
  }

  private static void transactions(String from, String to) throws Exception {
    Map<String, String> options = Map.of("transactional.id", "java-id-" + from);
    try (var producer = new KafkaProducer<String, String>(settings(options));
        var reader = consumer("java-once-" + from, "classic")) {
      producer.initTransactions();
      reader.subscribe(List.of(from));
      int copied = 0;
      long last = System.currentTimeMillis() + PATIENCE_MS;
      boolean aborts = true;
      while (copied < RECORDS) {
        check(System.currentTimeMillis() < last, copied + " copied");
        var some = reader.poll(Duration.ofMillis(200));
        if (some.isEmpty()) continue;
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        for (ConsumerRecord<String, String> one : some) {
          producer.send(new ProducerRecord<>(to, one.key(), one.value()));
          places.put(
              new TopicPartition(one.topic(), one.partition()),
              new OffsetAndMetadata(one.offset() + 1));
        }
        if (aborts) {
          producer.flush();
          producer.abortTransaction();
          aborts = false;
          for (TopicPartition each : places.keySet()) reader.seekToBeginning(List.of(each));
          continue;
        }
        producer.sendOffsetsToTransaction(places, reader.groupMetadata());
        producer.commitTransaction();
        copied += some.count();
      }
    }
    List<String> found = new ArrayList<>();
    try (var check = consumer("java-check-" + to, "consumer")) {
      check.subscribe(List.of(to));
      long last = System.currentTimeMillis() + PATIENCE_MS;
      while (found.size() < RECORDS) {
        check(System.currentTimeMillis() < last, found.size() + " copies read");
        for (ConsumerRecord<String, String> one : check.poll(Duration.ofMillis(200))) {
          found.add(one.value());
        }
      }
    }
    check(new HashSet<>(found).size() == RECORDS && found.size() == RECORDS, "twice: " + found);
  }

  private static void users(Admin admin) throws Exception {
    var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192);
    admin
        .alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("java", info, "secret")))
        .all()
        .get();
    String login =
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
            + "username=\"java\" password=\"secret\";";
    Map<String, Object> known = new HashMap<>();
    known.put("bootstrap.servers", address);
    known.put("security.protocol", "SASL_PLAINTEXT");
    known.put("sasl.mechanism", "SCRAM-SHA-512");
    known.put("sasl.jaas.config", login);
    long last = System.currentTimeMillis() + PATIENCE_MS;
    while (true) {
      try (Admin user = Admin.create(known)) {
        user.listTopics().names().get();
        return;
      } catch (ExecutionException error) {
        check(System.currentTimeMillis() < last, "not let in: " + error);
        Thread.sleep(200);
      }
    }
  }

  private static void quotas(Admin admin) throws Exception {
    Map<String, String> names = new HashMap<>();
    names.put(ClientQuotaEntity.USER, null);
    var op = new ClientQuotaAlteration.Op("producer_byte_rate", 1e9);
    var wanted = new ClientQuotaAlteration(new ClientQuotaEntity(names), List.of(op));
    admin.alterClientQuotas(List.of(wanted)).all().get();
    long last = System.currentTimeMillis() + PATIENCE_MS;
    while (admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().isEmpty()) {
      check(System.currentTimeMillis() < last, "no quota is told");
      Thread.sleep(100);
    }
  }

  private static void check(boolean holds, String what) {
    if (!holds) throw new IllegalStateException(what);
  }
}
