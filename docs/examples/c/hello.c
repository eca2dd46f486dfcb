#include <mosquitto.h>
#include <stdio.h>
#include <stdlib.h>

static int due = 2; // the PUBACK, and the message itself

static void one_less(struct mosquitto *client) {
    if (--due == 0) mosquitto_disconnect(client);
}
static void on_connect(struct mosquitto *client, void *data, int code) {
    mosquitto_subscribe(client, NULL, "hello/c", 1);
}
static void on_subscribe(struct mosquitto *client, void *data, int id, int count, const int *granted) {
    mosquitto_publish(client, NULL, "hello/c", 6, "from C", 1, false);
}
static void on_puback(struct mosquitto *client, void *data, int id) {
    one_less(client);
}
static void on_message(struct mosquitto *client, void *data, const struct mosquitto_message *message) {
    printf("%s %.*s\n", message->topic, message->payloadlen, (char *)message->payload);
    one_less(client);
}

int main(int count, char **words) {
    mosquitto_lib_init();
    struct mosquitto *client = mosquitto_new(NULL, true, NULL);
    mosquitto_connect_callback_set(client, on_connect);
    mosquitto_subscribe_callback_set(client, on_subscribe);
    mosquitto_publish_callback_set(client, on_puback);
    mosquitto_message_callback_set(client, on_message);
    if (mosquitto_connect(client, "127.0.0.1", count > 1 ? atoi(words[1]) : 1883, 60)) return 1;
    return mosquitto_loop_forever(client, -1, 1);
}
