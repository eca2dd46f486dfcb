// What go-amqp does with a broker; prints one line for each step that went well.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	many     = 100
	patience = 120 * time.Second
	nothing  = 500 * time.Millisecond
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must(right bool, what string) {
	if !right {
		panic(what)
	}
}

func within(patience time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func dial(address string) (*amqp.Conn, *amqp.Session) {
	ctx, cancel := within(patience)
	defer cancel()
	conn, err := amqp.Dial(ctx, "amqp://"+address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	check(err)
	session, err := conn.NewSession(ctx, nil)
	check(err)
	return conn, session
}

func sendAll(session *amqp.Session, queue string, messages ...*amqp.Message) {
	ctx, cancel := within(patience)
	defer cancel()
	sender, err := session.NewSender(ctx, queue, nil)
	check(err)
	for _, message := range messages {
		check(sender.Send(ctx, message, nil))
	}
	check(sender.Close(ctx))
}

func receiver(session *amqp.Session, queue string, options *amqp.ReceiverOptions) *amqp.Receiver {
	ctx, cancel := within(patience)
	defer cancel()
	made, err := session.NewReceiver(ctx, queue, options)
	check(err)
	return made
}

func next(from *amqp.Receiver) *amqp.Message {
	ctx, cancel := within(patience)
	defer cancel()
	message, err := from.Receive(ctx, nil)
	check(err)
	return message
}

func accept(from *amqp.Receiver, message *amqp.Message) {
	ctx, cancel := within(patience)
	defer cancel()
	check(from.AcceptMessage(ctx, message))
}

func isEmpty(session *amqp.Session, queue string) bool {
	from := receiver(session, queue, nil)
	ctx, cancel := within(nothing)
	defer cancel()
	_, err := from.Receive(ctx, nil)
	closing, done := within(patience)
	defer done()
	check(from.Close(closing))
	return errors.Is(err, context.DeadlineExceeded)
}

func numbered(n int) *amqp.Message {
	colour := "blue"
	if n%2 == 1 {
		colour = "red"
	}
	message := amqp.NewMessage([]byte(fmt.Sprintf("body %d", n)))
	message.ApplicationProperties = map[string]any{"number": int64(n), "colour": colour}
	message.Properties = &amqp.MessageProperties{CorrelationID: fmt.Sprintf("about %d", n)}
	return message
}

func send(session *amqp.Session, queue string) {
	var messages []*amqp.Message
	for n := 0; n < many; n++ {
		messages = append(messages, numbered(n))
	}
	messages = append(messages, amqp.NewMessage(make([]byte, 300_000)))
	sendAll(session, queue, messages...)
	from := receiver(session, queue, &amqp.ReceiverOptions{Credit: 20})
	for n := 0; n < many; n++ {
		message := next(from)
		must(string(message.GetData()) == fmt.Sprintf("body %d", n), "order")
		must(message.ApplicationProperties["number"] == int64(n), "a property")
		must(message.Properties.CorrelationID == fmt.Sprintf("about %d", n), "its correlation")
		accept(from, message)
	}
	large := next(from)
	must(len(large.GetData()) == 300_000, "a large one")
	accept(from, large)
	must(isEmpty(session, queue), "no more")
}

func outcomes(session *amqp.Session, queue string) {
	var messages []*amqp.Message
	for _, body := range []string{"accept", "reject", "release", "modify"} {
		messages = append(messages, amqp.NewMessage([]byte(body)))
	}
	sendAll(session, queue, messages...)
	from := receiver(session, queue, &amqp.ReceiverOptions{Credit: 4})
	ctx, cancel := within(patience)
	defer cancel()
	for n := 0; n < 4; n++ {
		message := next(from)
		switch string(message.GetData()) {
		case "accept":
			check(from.AcceptMessage(ctx, message))
		case "reject":
			check(from.RejectMessage(ctx, message, &amqp.Error{Condition: "test:no", Description: "not wanted"}))
		case "release":
			check(from.ReleaseMessage(ctx, message))
		default:
			check(from.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{
				DeliveryFailed: true, Annotations: amqp.Annotations{"x-opt-note": "seen"},
			}))
		}
	}
	again := map[string]*amqp.Message{}
	for n := 0; n < 2; n++ {
		message := next(from)
		again[string(message.GetData())] = message
		accept(from, message)
	}
	must(again["release"] != nil && again["modify"] != nil, "what is given again")
	must(again["modify"].Header.DeliveryCount == 1, "its count")
	must(again["modify"].Annotations["x-opt-note"] == "seen", "its note")
	must(isEmpty(session, queue), "no more")
	dead := next(receiver(session, queue+"/$dead-letters", nil))
	must(string(dead.GetData()) == "reject", "the dead letter")
	reason, _ := dead.Annotations["x-opt-dead-letter-reason"].(string)
	must(strings.Contains(reason, "not wanted"), "its reason")
}

func credit(session *amqp.Session, queue string) {
	var messages []*amqp.Message
	for n := 0; n < 20; n++ {
		messages = append(messages, numbered(n))
	}
	sendAll(session, queue, messages...)
	ctx, cancel := within(patience)
	defer cancel()
	manual := receiver(session, queue, &amqp.ReceiverOptions{Credit: -1})
	check(manual.IssueCredit(5))
	var held []*amqp.Message
	for n := 0; n < 5; n++ {
		held = append(held, next(manual))
	}
	other := receiver(session, queue, &amqp.ReceiverOptions{Credit: 30})
	for n := 0; n < 15; n++ {
		accept(other, next(other))
	}
	must(manual.Prefetched() == nil, "five and no more")
	for _, each := range held {
		check(manual.ReleaseMessage(ctx, each))
	}
	for n := 0; n < 5; n++ {
		accept(other, next(other))
	}
	check(manual.IssueCredit(3))
	check(manual.DrainCredit(ctx, nil))
	must(manual.Prefetched() == nil, "nothing is there to be drained")
}

func selectors(session *amqp.Session, queue string) {
	var messages []*amqp.Message
	for n := 0; n < 20; n++ {
		messages = append(messages, numbered(n))
	}
	sendAll(session, queue, messages...)
	ctx, cancel := within(patience)
	defer cancel()
	filters := []amqp.LinkFilter{amqp.NewSelectorFilter("colour = 'blue' AND number BETWEEN 4 AND 9")}
	chosen := receiver(session, queue, &amqp.ReceiverOptions{Credit: 10, Filters: filters})
	for _, n := range []int{4, 6, 8} {
		message := next(chosen)
		must(string(message.GetData()) == fmt.Sprintf("body %d", n), "a chosen one")
		accept(chosen, message)
	}
	check(chosen.Close(ctx))
	rest := receiver(session, queue, &amqp.ReceiverOptions{Credit: 10})
	for n := 0; n < 17; n++ {
		accept(rest, next(rest))
	}
}

// survive sends and receives over the end of a node; what nobody knows of is sent again.
func survive(addresses []string, queue string) {
	found := map[string]bool{}
	sent, dialled := 0, 0
	for len(found) < 2*many {
		func() {
			ctx, cancel := within(10 * time.Second)
			defer cancel()
			dialled++
			conn, err := amqp.Dial(ctx, "amqp://"+addresses[dialled%len(addresses)], nil)
			if err != nil {
				time.Sleep(50 * time.Millisecond)
				return
			}
			defer conn.Close()
			session, err := conn.NewSession(ctx, nil)
			if err != nil {
				return
			}
			sender, err := session.NewSender(ctx, queue, nil)
			if err != nil {
				return
			}
			from, err := session.NewReceiver(ctx, queue, &amqp.ReceiverOptions{Credit: 10})
			if err != nil {
				return
			}
			for len(found) < 2*many {
				each, cancel := within(5 * time.Second)
				if sent < 2*many {
					if sender.Send(each, amqp.NewMessage([]byte(fmt.Sprintf("body %d", sent))), nil) != nil {
						cancel()
						return
					}
					sent++
					if sent == many {
						fmt.Println("half")
					}
				}
				message, err := from.Receive(each, nil)
				if err == nil {
					found[string(message.GetData())] = true
					err = from.AcceptMessage(each, message)
				}
				cancel()
				if err != nil {
					return
				}
			}
		}()
	}
	fmt.Println("survive")
}

func main() {
	addresses, prefix := strings.Split(os.Args[1], ","), os.Args[2]
	if len(os.Args) > 3 && os.Args[3] == "survive" {
		survive(addresses, prefix)
		return
	}
	conn, session := dial(addresses[0])
	defer conn.Close()
	steps := []struct {
		name string
		step func(*amqp.Session, string)
	}{{"send", send}, {"outcomes", outcomes}, {"credit", credit}, {"selectors", selectors}}
	for _, each := range steps {
		each.step(session, prefix+"-"+each.name)
		fmt.Println(each.name)
	}
}
