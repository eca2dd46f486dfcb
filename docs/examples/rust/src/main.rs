use rumqttc::{Client, Event, MqttOptions, Packet, QoS};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).map_or(Ok(1883), |word| word.parse())?;
    let (client, mut connection) = Client::new(MqttOptions::new("hello-rust", "127.0.0.1", port), 10);
    let mut due = 2; // the PUBACK, and the message itself
    client.subscribe("hello/rust", QoS::AtLeastOnce)?;
    for event in connection.iter() {
        match event? {
            Event::Incoming(Packet::SubAck(_)) => client.publish("hello/rust", QoS::AtLeastOnce, false, "from Rust")?,
            Event::Incoming(Packet::Publish(message)) => {
                println!("{} {}", message.topic, String::from_utf8_lossy(&message.payload));
                due -= 1;
            }
            Event::Incoming(Packet::PubAck(_)) => due -= 1,
            _ => {}
        }
        if due == 0 {
            break;
        }
    }
    Ok(())
}
