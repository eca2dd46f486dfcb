import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What JMS does with a broker by AMQP; prints one line for each step that went well. */
public final class AmqpSteps {
  private static final long PATIENCE_MS = 120_000;
  private static final long NOTHING_MS = 500;
  private static final int MANY = 100;

  public static void main(String[] arguments) throws Exception {
    String[] addresses = arguments[0].split(",");
    String prefix = arguments[1];
    if (arguments.length > 2 && arguments[2].equals("survive")) {
      survive(addresses, prefix);
    } else {
      try (Connection connection =
          new JmsConnectionFactory("amqp://" + addresses[0]).createConnection()) {
        connection.start();
        send(connection, prefix + "-send");
        System.out.println("send");
        outcomes(connection, prefix + "-outcomes");
        System.out.println("outcomes");
        credit(addresses[0], prefix + "-credit");
        System.out.println("credit");
        selectors(connection, prefix + "-selectors");
        System.out.println("selectors");
        transactions(connection, prefix + "-tx");
        System.out.println("transactions");
      }
    }
    System.exit(0);
  }

  private static void check(boolean right, String what) {
    if (!right) {
      throw new AssertionError(what);
    }
  }

  private static String text(Message message) throws JMSException {
    check(message != null, "nothing came");
    return ((TextMessage) message).getText();
  }

  private static void send(Connection connection, String name) throws Exception {
    try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
      Queue queue = session.createQueue(name);
      MessageProducer producer = session.createProducer(queue);
      producer.setDeliveryMode(DeliveryMode.PERSISTENT);
      for (int n = 0; n < MANY; n++) {
        TextMessage message = session.createTextMessage("body " + n);
        message.setIntProperty("number", n);
        message.setStringProperty("colour", n % 2 == 0 ? "blue" : "red");
        message.setJMSCorrelationID("about " + n);
        producer.send(message);
      }
      QueueBrowser browser = session.createBrowser(queue);
      check(Collections.list(browser.getEnumeration()).size() == MANY, "what is shown");
      browser.close();
      MessageConsumer consumer = session.createConsumer(queue);
      for (int n = 0; n < MANY; n++) {
        Message message = consumer.receive(PATIENCE_MS);
        check(text(message).equals("body " + n), "order");
        check(message.getIntProperty("number") == n, "a property");
        check(message.getJMSCorrelationID().equals("about " + n), "its correlation");
      }
      check(consumer.receive(NOTHING_MS) == null, "no more");
    }
  }

  private static void outcomes(Connection connection, String name) throws Exception {
    try (Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
      Queue queue = session.createQueue(name);
      session.createProducer(queue).send(session.createTextMessage("again"));
      MessageConsumer consumer = session.createConsumer(queue);
      Message first = consumer.receive(PATIENCE_MS);
      check(!first.getJMSRedelivered(), "the first time");
      session.recover();
      Message second = consumer.receive(PATIENCE_MS);
      check(text(second).equals("again") && second.getJMSRedelivered(), "the second time");
      second.setIntProperty("JMS_AMQP_ACK_TYPE", 2); // rejected
      second.acknowledge();
      check(consumer.receive(NOTHING_MS) == null, "it is a dead letter");
      consumer.close();
      MessageConsumer dead = session.createConsumer(session.createQueue(name + "/$dead-letters"));
      Message letter = dead.receive(PATIENCE_MS);
      check(text(letter).equals("again"), "the dead letter");
      letter.acknowledge();
    }
  }

  private static void credit(String address, String name) throws Exception {
    String uri = "amqp://" + address + "?jms.prefetchPolicy.all=5";
    try (Connection slow = new JmsConnectionFactory(uri).createConnection();
        Connection other = new JmsConnectionFactory(uri).createConnection()) {
      slow.start();
      other.start();
      Session session = slow.createSession(Session.AUTO_ACKNOWLEDGE);
      Session second = other.createSession(Session.AUTO_ACKNOWLEDGE);
      Queue queue = session.createQueue(name);
      MessageConsumer holder = session.createConsumer(queue);
      MessageProducer producer = session.createProducer(queue);
      for (int n = 0; n < MANY; n++) {
        producer.send(session.createTextMessage("" + n));
      }
      // Whoever does not receive has five at most; the other one is given all the others.
      MessageConsumer quick = second.createConsumer(queue);
      Set<String> found = new HashSet<>();
      for (int n = 0; n < MANY - 5; n++) {
        found.add(text(quick.receive(PATIENCE_MS)));
      }
      for (int n = 0; n < 5; n++) {
        found.add(text(holder.receive(PATIENCE_MS)));
      }
      check(found.size() == MANY, "each once");
    }
  }

  private static void selectors(Connection connection, String name) throws Exception {
    try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
      Queue queue = session.createQueue(name);
      MessageProducer producer = session.createProducer(queue);
      for (int n = 0; n < 20; n++) {
        TextMessage message = session.createTextMessage("" + n);
        message.setIntProperty("number", n);
        message.setStringProperty("colour", n % 2 == 0 ? "blue" : "red");
        producer.send(message);
      }
      String selector = "colour = 'blue' AND number BETWEEN 4 AND 9";
      MessageConsumer some = session.createConsumer(queue, selector);
      for (String wanted : List.of("4", "6", "8")) {
        check(text(some.receive(PATIENCE_MS)).equals(wanted), "a chosen one");
      }
      check(some.receive(NOTHING_MS) == null, "no other");
      some.close();
      MessageConsumer rest = session.createConsumer(queue);
      for (int n = 0; n < 17; n++) {
        text(rest.receive(PATIENCE_MS));
      }
    }
  }

  private static void transactions(Connection connection, String name) throws Exception {
    try (Session session = connection.createSession(Session.SESSION_TRANSACTED)) {
      // Of so many queues some are in other partitions than the first.
      List<Queue> queues = new ArrayList<>();
      for (int n = 0; n < 8; n++) {
        queues.add(session.createQueue(name + "-" + n));
      }
      MessageProducer first = session.createProducer(queues.get(0));
      first.send(session.createTextMessage("never"));
      session.rollback();
      first.send(session.createTextMessage("moved"));
      session.commit();
      List<MessageConsumer> consumers = new ArrayList<>();
      for (Queue queue : queues) {
        consumers.add(session.createConsumer(queue));
      }
      for (int n = 0; n < queues.size(); n++) {
        // Taken and rolled back once, then moved on.
        Message message = consumers.get(n).receive(PATIENCE_MS);
        check(text(message).equals("moved"), "it is in " + n);
        check(n > 0 || !message.getJMSRedelivered(), "the first time");
        session.createProducer(queues.get((n + 1) % queues.size())).send(message);
        session.rollback();
        message = consumers.get(n).receive(PATIENCE_MS);
        check(text(message).equals("moved") && message.getJMSRedelivered(), "again in " + n);
        TextMessage next = session.createTextMessage("moved");
        session.createProducer(queues.get((n + 1) % queues.size())).send(next);
        session.commit();
        check(consumers.get(n).receive(NOTHING_MS) == null, "nothing is left in " + n);
        session.commit();
      }
      check(text(consumers.get(0).receive(PATIENCE_MS)).equals("moved"), "it came round");
      session.commit();
    }
  }

  private static void survive(String[] addresses, String prefix) throws Exception {
    StringBuilder hosts = new StringBuilder();
    for (String address : addresses) {
      hosts.append(hosts.length() == 0 ? "" : ",").append("amqp://").append(address);
    }
    String uri = "failover:(" + hosts + ")?failover.reconnectDelay=50&failover.maxReconnectDelay=200";
    try (Connection connection = new JmsConnectionFactory(uri).createConnection()) {
      connection.start();
      Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
      Queue queue = session.createQueue(prefix);
      MessageProducer producer = session.createProducer(queue);
      MessageConsumer consumer = session.createConsumer(queue);
      Set<String> found = new HashSet<>();
      for (int n = 0; n < 2 * MANY; n++) {
        if (n == MANY) {
          System.out.println("half");
        }
        String body = "body " + n;
        while (true) {
          try {
            producer.send(session.createTextMessage(body));
            break;
          } catch (JMSException error) {
            Thread.sleep(50); // nobody knows whether it was sent: it is sent again
          }
        }
        Message message = consumer.receive(1);
        if (message != null) {
          found.add(text(message));
        }
      }
      while (found.size() < 2 * MANY) {
        found.add(text(consumer.receive(PATIENCE_MS)));
      }
      System.out.println("survive");
    }
  }
}
