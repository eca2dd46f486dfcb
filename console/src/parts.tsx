/** What pages are made of: tables, meters, problems, questions. Each is usable by keyboard. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Refused } from "./api";
import type { Asked, Doing } from "./asking";

export interface Column<Row> {
  name: string;
  of: (row: Row) => ComponentChildren;
  /** Numbers stand at the right. */
  number?: boolean;
}

export function Table<Row>(props: {
  caption: string;
  columns: Column<Row>[];
  rows: Row[];
  empty: string;
}): JSX.Element {
  if (!props.rows.length) return <p class="empty">{props.empty}</p>;
  return (
    <div class="scroll" role="region" aria-label={props.caption} tabIndex={0}>
      <table>
        <caption>{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((each) => (
              <th scope="col" class={each.number ? "number" : ""}>{each.name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr>
              {props.columns.map((each) => (
                <td class={each.number ? "number" : ""}>{each.of(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Problem(props: { problem: Refused; again?: () => void }): JSX.Element {
  const { problem } = props;
  const facts = Object.entries(problem.facts);
  return (
    <div class="problem" role="alert">
      <strong>{problem.message}</strong>
      {problem.next && <p>What to do: {problem.next}</p>}
      {facts.length > 0 && <p class="quiet">{facts.map(([k, v]) => `${k}: ${shown(v)}`).join(" · ")}</p>}
      {props.again && <button onClick={props.again}>Ask again</button>}
    </div>
  );
}

function shown(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Show what was asked for, or why it is not there, or that it is on its way. */
export function Answered<Answer>(props: {
  asked: Asked<Answer>;
  children: (answer: Answer) => ComponentChildren;
}): JSX.Element {
  const { answer, problem, again } = props.asked;
  return (
    <>
      {problem && <Problem problem={problem} again={again} />}
      {answer !== null ? props.children(answer) : !problem && <p class="empty" role="status">Asking the node…</p>}
    </>
  );
}

export function Outcome(props: { doing: Doing }): JSX.Element {
  const { doing } = props;
  return (
    <>
      <p class="said" role="status" aria-live="polite">{doing.busy ? "Waiting for the node…" : doing.said}</p>
      {doing.problem && <Problem problem={doing.problem} />}
    </>
  );
}

export function Card(props: {
  title: string;
  children: ComponentChildren;
  wide?: boolean;
  /** It came because somebody asked for it: they are led to it. */
  opened?: boolean;
}): JSX.Element {
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!props.opened) return;
    place.current?.focus({ preventScroll: true });
    place.current?.scrollIntoView({ block: "nearest" });
  }, []);
  return (
    <section ref={place} tabIndex={props.opened ? -1 : undefined} class={props.wide ? "card wide" : "card"}>
      <h2>{props.title}</h2>
      {props.children}
    </section>
  );
}

export function Fact(props: { name: string; children: ComponentChildren; bad?: boolean }): JSX.Element {
  return (
    <div class={props.bad ? "fact bad" : "fact"}>
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

/** How much of a bound is used; a bound of 0 is none. */
export function Bar(props: { name: string; used: number; bound: number; show: (n: number) => string }): JSX.Element {
  const { name, used, bound, show } = props;
  const words = bound > 0 ? `${show(used)} of ${show(bound)}` : `${show(used)}, without a bound`;
  return (
    <div class="bar">
      <span>{name}</span>
      <meter aria-label={`${name}: ${words}`} min={0} max={bound || 1} high={0.9 * (bound || 1)} value={bound ? Math.min(used, bound) : 0} />
      <span class="quiet">{words}</span>
    </div>
  );
}

export function Tag(props: { kind: "good" | "bad" | "plain"; children: ComponentChildren }): JSX.Element {
  return <span class={`tag ${props.kind}`}>{props.children}</span>;
}

let drawn = 0;

export function Field(props: {
  name: string;
  value: string;
  onChange: (value: string) => void;
  kind?: "text" | "search" | "number" | "area" | "password";
  options?: readonly string[];
  required?: boolean;
  hint?: string;
}): JSX.Element {
  const [id] = useState(() => `field-${++drawn}`);
  const common = { id, value: props.value, required: props.required };
  const heard = (event: Event) => props.onChange((event.currentTarget as HTMLInputElement).value);
  return (
    <label class="field" for={id}>
      <span>{props.name}</span>
      {props.options ? (
        <select {...common} onChange={heard}>
          {props.options.map((each) => <option value={each}>{each}</option>)}
        </select>
      ) : props.kind === "area" ? (
        <textarea {...common} rows={4} spellcheck={false} onInput={heard} />
      ) : (
        <input {...common} type={props.kind ?? "text"} placeholder={props.hint} autocomplete="off" spellcheck={false} onInput={heard} />
      )}
    </label>
  );
}

export function Form(props: {
  label: string;
  onSubmit: () => void;
  children: ComponentChildren;
}): JSX.Element {
  const heard = (event: Event) => {
    event.preventDefault();
    props.onSubmit();
  };
  return <form aria-label={props.label} onSubmit={heard}>{props.children}</form>;
}

/** Ask before something is done that cannot be undone. */
export function Confirm(props: {
  title: string;
  children: ComponentChildren;
  yes: string;
  onYes: () => void;
  onNo: () => void;
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby="question" onCancel={props.onNo}>
      <h2 id="question">{props.title}</h2>
      {props.children}
      <div class="row">
        <button autofocus onClick={props.onNo}>Leave it</button>
        <button class="danger" onClick={props.onYes}>{props.yes}</button>
      </div>
    </dialog>
  );
}

/** Pages of a long list: `after` of each page leads to the next. */
export function usePages(): { after: string | null; first: () => void; pager: (next: string | null | undefined) => JSX.Element | null } {
  const [after, setAfter] = useState<string | null>(null);
  const first = () => setAfter(null);
  const pager = (next: string | null | undefined) =>
    next == null && after === null ? null : (
      <div class="row">
        <button disabled={after === null} onClick={first}>First page</button>
        <button disabled={next == null} onClick={() => setAfter(next ?? null)}>Next page</button>
      </div>
    );
  return { after, first, pager };
}
