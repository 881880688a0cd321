// docs/openapi.json against the server: the same paths, parameters, fields and levels, and answers
// that are what their schemas say.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "memserver/admin/admin_api.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace openapi_test {

namespace json = boost::json;

json::value ReadDocument() {
  std::stringstream text;
  text << std::ifstream(TIDEPOOL_OPENAPI).rdbuf();
  boost::system::error_code error;
  json::value document = json::parse(text.str(), error);
  EXPECT_FALSE(error) << error.message();
  return document;
}

std::string TextOf(const json::value& value) {
  return std::string(value.as_string());
}

bool IsOfType(const json::value& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return value.is_number();
}

// What of `value` is not as `schema` says; empty when all is. Knows the words that the document
// uses.
std::string WhyNot(const json::value& value, const json::object& schema, const std::string& where) {
  if (const json::value* type = schema.if_contains("type")) {
    const json::array types = type->is_array() ? type->as_array() : json::array{*type};
    const auto fits = [&](const json::value& each) { return IsOfType(value, TextOf(each)); };
    if (std::none_of(types.begin(), types.end(), fits))
      return where + " is no " + json::serialize(*type);
  }
  if (const json::value* words = schema.if_contains("enum")) {
    if (std::find(words->as_array().begin(), words->as_array().end(), value) ==
        words->as_array().end())
      return where + " is another word";
  }
  if (value.is_array() && schema.contains("items")) {
    for (const json::value& each : value.as_array()) {
      if (const std::string why = WhyNot(each, schema.at("items").as_object(), where + "[]");
          !why.empty())
        return why;
    }
  }
  if (!value.is_object() || !schema.contains("properties")) return "";
  const json::object& properties = schema.at("properties").as_object();
  for (const json::value& name : schema.at("required").as_array()) {
    if (!value.as_object().contains(name.as_string()))
      return where + "." + TextOf(name) + " is missing";
  }
  for (const auto& [name, member] : value.as_object()) {
    if (!properties.contains(name))
      return where + "." + std::string(name) + " is not in the document";
    if (const std::string why =
            WhyNot(member, properties.at(name).as_object(), where + "." + std::string(name));
        !why.empty())
      return why;
  }
  return "";
}

struct Operation {
  std::string method, path;  // "GET", "/v1/jobs/{job}"
  json::object about;
  std::string target() const {
    std::string target = path;
    for (const auto& [name, value] : {std::pair("{job}", "gpt"), std::pair("{chunk}", "1")}) {
      if (const size_t at = target.find(name); at != std::string::npos)
        target.replace(at, std::string(name).size(), value);
    }
    return target;
  }
  // What a sound request of the operation brings.
  std::string query() const {
    return ParametersIn("query").contains("check")  ? "?check=DRAINING"
           : ParametersIn("path").contains("chunk") ? "?job=gpt"
                                                    : "";
  }
  AdminLevel level() const {
    const std::string name = TextOf(about.at("x-level"));
    return name == "user"       ? AdminLevel::kUser
           : name == "operator" ? AdminLevel::kOperator
                                : AdminLevel::kAdmin;
  }
  std::set<std::string> ParametersIn(const char* place) const {
    std::set<std::string> names;
    const json::value* all = about.if_contains("parameters");
    for (const json::value& each : all == nullptr ? json::array() : all->as_array()) {
      if (TextOf(each.at("in")) == place) names.insert(TextOf(each.at("name")));
    }
    return names;
  }
  // "?by=layer" for each word that a parameter may be, and nothing at all.
  std::vector<std::string> Queries() const {
    std::vector<std::string> all{query()};
    const json::value* parameters = about.if_contains("parameters");
    for (const json::value& each : parameters == nullptr ? json::array() : parameters->as_array()) {
      const json::value* words = each.at("schema").as_object().if_contains("enum");
      for (const json::value& word : words == nullptr ? json::array() : words->as_array()) {
        all.push_back("?" + TextOf(each.at("name")) + "=" + TextOf(word));
      }
    }
    return all;
  }
  std::set<std::string> Fields() const {
    std::set<std::string> names;
    if (!about.contains("requestBody")) return names;
    const json::value& schema =
        about.at("requestBody").at("content").at("application/json").at("schema");
    for (const auto& [name, field] : schema.at("properties").as_object())
      names.insert(std::string(name));
    return names;
  }
};

std::vector<Operation> Operations() {
  std::vector<Operation> all;
  const json::value document = ReadDocument();
  for (const auto& [path, methods] : document.at("paths").as_object()) {
    for (const auto& [method, about] : methods.as_object()) {
      std::string upper(method);
      std::transform(upper.begin(), upper.end(), upper.begin(),
                     [](char c) { return static_cast<char>(c - 'a' + 'A'); });
      all.push_back({upper, std::string(path), about.as_object()});
    }
  }
  return all;
}

class OpenApi : public ::testing::Test {
 protected:
  AdminAnswer Ask(const Operation& operation, const std::string& query, const std::string& body,
                  AdminLevel level = AdminLevel::kAdmin) {
    return api_.Answer(
        {operation.method, operation.target() + query, body, {.uid = 0, .pid = 1, .level = level}});
  }
  static std::string BodyOf(const Operation& operation) {
    const std::set<std::string> fields = operation.Fields();
    return fields.contains("weight")   ? R"({"weight":2})"
           : fields.contains("check")  ? R"({"check":"DRAINING","for":"1h"})"
           : fields.contains("level")  ? R"({"level":"info"})"
           : fields.contains("record") ? R"({"record":true})"
                                       : "";
  }
  FakeLoop loop_;
  AdminApi api_{{.version = "1.2.3",
                 .abi = 9,
                 .build = "b",
                 .devices = {"host"},
                 .socket_dir = "/d",
                 .pid = 7,
                 .topology = kTopology,
                 .config_schema = kSchema},
                &loop_.source,
                loop_.mail()};
  static constexpr const char* kSchema =
      R"({"settings":[{"key":"pool.size","flag":"--pool","environment":"TIDEPOOL_POOL","kind":"SIZE|%","default":"50%","description":"d","reloads":false}]})";
  static constexpr const char* kTopology =
      R"({"source":"a test","nodes":[{"id":0,"cpus":"0-3","memory_bytes":1,"pool_bytes":1,"workers":2}],"root_complexes":[],)"
      R"("plan":{"pool_nodes":[0],"pool_spread":"system","worker_cpus":[3],"staging":[]}})";
};

TEST_F(OpenApi, HasEveryEndpointAndNoOther) {
  std::set<std::string> told;
  for (const Operation& each : Operations()) {
    std::string path = each.path;
    if (const size_t at = path.find("{job}"); at != std::string::npos)
      path.replace(at, 5, "{id or name}");
    told.insert(each.method + " " + path);
    std::set<std::string> in_path;
    for (const char* name : {"job", "chunk"}) {
      if (each.path.find("{" + std::string(name) + "}") != std::string::npos) in_path.insert(name);
    }
    EXPECT_EQ(each.ParametersIn("path"), in_path) << path;
  }
  const std::vector<std::string> all = AdminApi::Endpoints();
  EXPECT_EQ(told, std::set<std::string>(all.begin(), all.end()));
}

TEST_F(OpenApi, AnswersAreWhatTheirSchemasSay) {
  for (const Operation& each : Operations()) {
    for (const std::string& query : each.Queries()) {
      SCOPED_TRACE(each.method + " " + each.path + query);
      const AdminAnswer answer = Ask(each, query, BodyOf(each));
      ASSERT_EQ(answer.status, 200u) << answer.body;
      const json::object& content = each.about.at("responses").at("200").at("content").as_object();
      const std::string kind =
          std::string(answer.content_type).substr(0, std::string(answer.content_type).find(';'));
      ASSERT_TRUE(content.contains(kind)) << answer.content_type;
      if (kind != "application/json") continue;
      EXPECT_EQ(
          WhyNot(json::parse(answer.body), content.at(kind).at("schema").as_object(), "answer"), "")
          << answer.body;
    }
  }
}

TEST_F(OpenApi, OtherParametersAndFieldsAreRefusedAndTheTextNamesThoseThatAreToldOf) {
  for (const Operation& each : Operations()) {
    SCOPED_TRACE(each.method + " " + each.path);
    const AdminAnswer parameter = Ask(each, "?colour=red", BodyOf(each));
    EXPECT_EQ(parameter.status, 400u);
    for (const std::string& name : each.ParametersIn("query"))
      EXPECT_NE(parameter.body.find(name), std::string::npos) << parameter.body;
    if (each.method == "GET") continue;
    const AdminAnswer field = Ask(each, each.query(), R"({"colour":"red"})");
    EXPECT_EQ(field.status, 400u);
    for (const std::string& name : each.Fields())
      EXPECT_NE(field.body.find(name), std::string::npos) << field.body;
  }
}

TEST_F(OpenApi, WhoMayAskIsWhatTheServerSays) {
  for (const Operation& each : Operations()) {
    for (const AdminLevel level : {AdminLevel::kUser, AdminLevel::kOperator, AdminLevel::kAdmin}) {
      const AdminAnswer answer = Ask(each, each.query(), BodyOf(each), level);
      EXPECT_EQ(answer.status == 403, level < each.level())
          << each.method << " " << each.path << " as " << NameOf(level) << ": " << answer.body;
    }
  }
}

TEST_F(OpenApi, ErrorsAreTheProblemsThatItDescribes) {
  const json::value document = ReadDocument();
  const json::object& problem = document.at("components")
                                    .at("responses")
                                    .at("Problem")
                                    .at("content")
                                    .at("application/problem+json")
                                    .at("schema")
                                    .as_object();
  loop_.AnswerWith(Status(ErrorId::kQuotaRefused, "no").Where("here").Why("gpt holds all"));
  const AdminAnswer refused =
      api_.Answer({"POST", "/v1/reload", "", {.level = AdminLevel::kAdmin}});
  EXPECT_EQ(refused.status, 409u);
  EXPECT_EQ(WhyNot(json::parse(refused.body), problem, "problem"), "") << refused.body;
  const AdminAnswer unknown = api_.Answer({"GET", "/nowhere", "", {.level = AdminLevel::kAdmin}});
  EXPECT_EQ(WhyNot(json::parse(unknown.body), problem, "problem"), "") << unknown.body;
}

}  // namespace openapi_test
}  // namespace tidepool::memserver
