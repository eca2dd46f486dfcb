/** Why: a question to the node, and its answer as sentence, rule and command. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, query } from "../api";
import { useAsked } from "../asking";
import { Answered, Card, Field, Form, Tag } from "../parts";
import type { PageProps } from "../main";

export const GROUP_QUESTIONS = [
  "WhyNotLeader", "WhyCreditZero", "WhySnapshotBlocked", "WhyDiskBlocked", "WhyQuarantined", "WhyCreditHint", "WhyDurabilityMode",
] as const;

interface GroupAnswer {
  answer: { sentence: string; remedy: string; clause: string; holds: boolean };
}

interface ClientAnswer {
  client_id: string;
  connected: boolean;
  session: boolean;
  leader: number | null;
  wrong: boolean;
  causes: { clause: string; sentence: string; remedy: string; is_wrong: boolean }[];
}

interface AccessVerdict {
  allowed: boolean;
  sentence: string;
  rule: number;
}

/** Spell a word as a shell takes it. */
export function shell(word: string): string {
  return /^[\w./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function Cause(props: { clause: string; sentence: string; remedy: string; wrong: boolean; command: string }): JSX.Element {
  return (
    <div class={props.wrong ? "cause wrong" : "cause"}>
      <p><strong>{props.sentence}</strong></p>
      <p>Rule: <code>{props.clause}</code>{props.remedy && <>. What to do: {props.remedy}</>}</p>
      <p class="quiet">The same on a shell: <code>{props.command}</code></p>
    </div>
  );
}

/** Ask about a group, here and now. */
export function WhyGroup(props: { group: number; question: string }): JSX.Element {
  const asked = useAsked<GroupAnswer>(at`/v1/groups/${props.group}/why/${props.question}`);
  return (
    <Answered asked={asked}>
      {({ answer }) => (
        <Cause clause={`${props.question}: ${answer.clause}`} sentence={answer.sentence} remedy={answer.remedy} wrong={answer.holds}
          command={`quantum why ${props.group}`} />
      )}
    </Answered>
  );
}

/** Ask what stands in a client's way. */
export function WhyClient(props: { tenant: string; client: string; topic?: string }): JSX.Element {
  const { tenant, client, topic } = props;
  const asked = useAsked<ClientAnswer>(at`/clients/${client}/why` + query({ tenant, topic }));
  const command = `quantum why ${shell(client)} --client --tenant ${tenant}${topic ? ` --topic ${shell(topic)}` : ""}`;
  return (
    <Answered asked={asked}>
      {(answer) => (
        <>
          {!answer.causes.length && <p><Tag kind="good">Nothing</Tag> stands in its way.</p>}
          {answer.causes.map((each) => <Cause clause={each.clause} sentence={each.sentence} remedy={each.remedy} wrong={each.is_wrong} command={command} />)}
        </>
      )}
    </Answered>
  );
}

function WhyAccess(props: { tenant: string; client: string; action: string; topic: string }): JSX.Element {
  const { tenant, client, action, topic } = props;
  const asked = useAsked<AccessVerdict>(at`/clients/${client}/access` + query({ tenant, action, topic }));
  return (
    <Answered asked={asked}>
      {(answer) => (
        <Cause wrong={!answer.allowed} clause={answer.rule ? `access rule ${answer.rule}` : "no rule decided"} sentence={answer.sentence} remedy=""
          command={`quantum explain access ${shell(client)} ${action} ${shell(topic)} --tenant ${tenant}`} />
      )}
    </Answered>
  );
}

type Question =
  | { about: "client"; client: string; topic: string }
  | { about: "access"; client: string; topic: string; action: string }
  | { about: "group"; group: number; question: string };

function first(asked: URLSearchParams): Question | null {
  const client = asked.get("client");
  return client ? { about: "client", client, topic: asked.get("topic") ?? "" } : null;
}

export function Why(props: PageProps): JSX.Element {
  const [question, ask] = useState<Question | null>(() => first(props.asked));
  const [client, setClient] = useState(props.asked.get("client") ?? "");
  const [topic, setTopic] = useState(props.asked.get("topic") ?? "");
  const [action, setAction] = useState("publish");
  const [group, setGroup] = useState("");
  const [word, setWord] = useState<string>(GROUP_QUESTIONS[0]);
  return (
    <>
      <Card title="A client: why does it not receive, why is it slow, why is it refused?">
        <Form label="Ask about a client" onSubmit={() => ask({ about: "client", client, topic })}>
          <Field name="Client id" value={client} onChange={setClient} required />
          <Field name="Topic, if it is about one" value={topic} onChange={setTopic} />
          <button class="main">Ask why</button>
        </Form>
      </Card>
      <Card title="Access: may it?">
        <Form label="Ask about access" onSubmit={() => ask({ about: "access", client, topic, action })}>
          <Field name="Client id " value={client} onChange={setClient} required />
          <Field name="Wants to" value={action} onChange={setAction} options={["publish", "subscribe", "connect"]} />
          <Field name="Topic" value={topic} onChange={setTopic} />
          <button class="main">Ask whether</button>
        </Form>
      </Card>
      <Card title="A group: why does it not lead, write, compact or take more?">
        <Form label="Ask about a group" onSubmit={() => ask({ about: "group", group: Number(group), question: word })}>
          <Field name="Group" kind="number" value={group} onChange={setGroup} required />
          <Field name="Question" value={word} onChange={setWord} options={GROUP_QUESTIONS} />
          <button class="main">Ask why</button>
        </Form>
      </Card>
      {question && (
        <Card title="The answer" wide>
          <div aria-live="polite" key={JSON.stringify(question)}>
            {question.about === "client" && <WhyClient tenant={props.tenant} client={question.client} topic={question.topic} />}
            {question.about === "access" && <WhyAccess tenant={props.tenant} client={question.client} action={question.action} topic={question.topic} />}
            {question.about === "group" && <WhyGroup group={question.group} question={question.question} />}
          </div>
        </Card>
      )}
    </>
  );
}
