"""Requests and answers of a resources server, as the real NeMo Gym has them."""

import json
import unittest
import urllib.request

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from tests.cases import FILES, TASK, judge, reply


def post(path, body):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {judge().token}"}
    with urllib.request.urlopen(urllib.request.Request(judge().url + path, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


class NeMoGym(unittest.TestCase):
    def test_a_response_is_verified(self):
        self.assertEqual(post("/seed_session", {}), {})
        for text, reward in ((reply(FILES), 1.0), ("nothing", -1.0)):
            content = [{"type": "output_text", "text": text, "annotations": []}]
            message = {"id": "1", "type": "message", "role": "assistant", "status": "completed", "content": content}
            response = NeMoGymResponse(id="r", created_at=0, model="m", object="response", output=[message], parallel_tool_calls=True, tool_choice="auto", tools=[])
            asked = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "q"}])
            request = BaseVerifyRequest(responses_create_params=asked, response=response).model_dump(mode="json")
            found = BaseVerifyResponse.model_validate(post("/verify", {**request, "verifier_metadata": {"task": TASK}}))
            self.assertEqual((found.reward, found.response.output[0].content[0].text), (reward, text))


if __name__ == "__main__":
    unittest.main()
