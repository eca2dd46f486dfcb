package main

import (
	"fmt"
	"os"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

func main() {
	port := "1883"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	client := mqtt.NewClient(mqtt.NewClientOptions().AddBroker("tcp://127.0.0.1:" + port))
	arrived := make(chan mqtt.Message, 1)
	wait(client.Connect())
	wait(client.Subscribe("hello/go", 1, func(_ mqtt.Client, message mqtt.Message) { arrived <- message }))
	wait(client.Publish("hello/go", 1, false, "from Go")) // PUBACK: fsynced on a quorum
	message := <-arrived
	fmt.Println(message.Topic(), string(message.Payload()))
	client.Disconnect(250)
}

func wait(token mqtt.Token) {
	if token.Wait(); token.Error() != nil {
		panic(token.Error())
	}
}
